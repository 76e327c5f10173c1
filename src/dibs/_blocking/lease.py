"""The blocking faces of a lease and of the flag that says that it was lost."""

from __future__ import annotations

from typing import Any, Self

from dibs._blocking.block import Block
from dibs._blocking.faces import faces
from dibs._blocking.whole_try import whole_try
from dibs.core import lease as _lease
from dibs.core import loss as _loss
from dibs.core.checks import Seconds
from dibs.errors import LossReason
from dibs.runtime import run


@faces(_loss.Loss)
class Loss:
    """The loss of one lease, as a flag: ``if lease.lost``, ``lease.lost.wait(1)``."""

    __slots__ = ("_core",)

    def __init__(self, core: _loss.Loss) -> None:
        self._core = core

    def __bool__(self) -> bool:
        """Whether the lease was lost, by the clock of this moment."""
        return bool(self._core)

    def is_set(self) -> bool:
        """Whether the lease was lost, by the clock of this moment."""
        return self._core.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the lease is lost or given up, at most *timeout* seconds; tell whether it was lost."""
        return run(self._core.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_lease.Lease)
class Lease(Block):
    """One grant of a lock, as `Lock.acquire` returns it.

    Use it as a context manager, or call `release` when the work is done. It may be handed to other threads or
    tasks of this process; to another process with `to_str`.
    """

    __slots__ = ("__weakref__",)

    _core: _lease.Lease

    def __init__(self, core: _lease.Lease) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is locked."""
        return self._core.name

    @property
    def token(self) -> str:
        """Proves ownership to the store. A secret."""
        return self._core.token

    @property
    def fence(self) -> int:
        """What the resource checks: higher for every later grant of the name."""
        return self._core.fence

    @property
    def ttl(self) -> float:
        """The length of the lease in seconds; each renewal extends it by so much."""
        return self._core.ttl

    @property
    def note(self) -> str:
        """What the holder said it does."""
        return self._core.note

    @property
    def lost(self) -> Loss:
        """Whether the lease was lost, as a flag: ``if lease.lost``, ``lease.lost.wait(1)``."""
        return Loss(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost; None as long as it was not."""
        return self._core.lost_reason

    def expires_in(self) -> float:
        """Seconds for which the lease is still valid if no renewal succeeds; 0 when it is over."""
        return self._core.expires_in()

    def check(self) -> None:
        """Raise `LeaseLost` if the lease was lost, `Misuse` if it was given up. Costs no I/O.

        A process can be paused right after it: only a guard that compares the fence is exact.
        """
        self._core.check()

    def renew(self) -> None:
        """Extend the lease now, for example before a long step; else the keeper does it in time.

        Raises `LeaseLost`, or `StoreUnavailable` while the lease is still valid and the keeper goes on trying.
        """
        run(self._core.renew())

    def release(self) -> None:
        """Give the lock back. Doing it again does nothing.

        Raises `LeaseLost` if the lease had been lost, and `StoreUnavailable` if the store could not be told: the
        keeper then goes on telling it until the lease's end, and you may call again.
        """
        run(self._core.release())

    def detach(self) -> str:
        """Stop keeping the lease here and return `to_str`: from now on it lasts for its ttl, or until resumed.

        This process may end without freeing the lock. Whoever gets the text can `Client.resume` it.
        """
        return run(self._core.detach())

    def compare(self) -> Any:
        """Return the condition that this lease holds, for a transaction of your own in the same store. Costs no I/O.

        The store then checks it in the very step that writes, which no pause can come between. ZooKeeper, etcd and
        Consul have such conditions, each in the shape of its transactions; `NotSupported` from the others.
        """
        return self._core.compare()

    def to_str(self) -> str:
        """Return the lease as text for another process, which gets it with `Client.resume`.

        The text proves ownership: treat it as a secret. This process goes on keeping the lease; `detach` ends that.
        """
        return self._core.to_str()

    @whole_try
    def __enter__(self) -> Self:
        """Let a loss cancel the body from now on (async code, unless the lock has ``on_lost="flag"``)."""
        try:
            run(self._core.__aenter__())
        except BaseException as error:
            self._core._abandon(error)
            raise
        return self

    def __repr__(self) -> str:
        return repr(self._core)
