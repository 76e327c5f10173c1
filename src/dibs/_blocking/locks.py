"""The blocking faces of several locks that are taken together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from dibs._blocking.block import Block
from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs._blocking.whole_try import whole_try
from dibs.core import lease as _lease
from dibs.core import locks as _several
from dibs.core.checks import Seconds
from dibs.core.lease import leave
from dibs.core.lock import AS_THE_LOCK_SAYS, _AsTheLockSays
from dibs.errors import LossReason
from dibs.runtime import run


@faces(_several.LossOfAny)
class LossOfAny:
    """The loss of one of several leases, as a flag: ``if leases.lost``, ``leases.lost.wait(1)``."""

    __slots__ = ("_core",)

    def __init__(self, core: _several.LossOfAny) -> None:
        self._core = core

    @property
    def reason(self) -> LossReason | None:
        """Why the first of them was lost; None if none was."""
        return self._core.reason

    def __bool__(self) -> bool:
        """Whether one was lost, by the clock of this moment."""
        return bool(self._core)

    def is_set(self) -> bool:
        """Whether one was lost, by the clock of this moment."""
        return self._core.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until one is lost or all are given up, at most *timeout* seconds; tell whether one was lost."""
        return run(self._core.wait(timeout))

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_several.Leases)
class Leases(Block, Mapping[str, Lease]):
    """The grants of several locks, as `Locks.acquire` returns them: a mapping of names to leases.

    Use it as a context manager, or call `release` when the work is done.
    """

    __slots__ = ()

    _core: _several.Leases

    def __init__(self, core: _several.Leases) -> None:
        self._core = core

    def __getitem__(self, name: str) -> Lease:
        """The lease on *name*."""
        return Lease(self._core[name])

    def __iter__(self) -> Iterator[str]:
        """The names, in the order in which they were taken."""
        return iter(self._core)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._core)

    @property
    def fences(self) -> dict[str, int]:
        """What the resources check, by name."""
        return self._core.fences

    @property
    def lost(self) -> LossOfAny:
        """Whether one of them was lost, as a flag: ``if leases.lost``, ``leases.lost.wait(1)``."""
        return LossOfAny(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why the first of them was lost; None as long as none was."""
        return self._core.lost_reason

    def expires_in(self) -> float:
        """Seconds for which all are still valid if no renewal succeeds; 0 when one is over."""
        return self._core.expires_in()

    def check(self) -> None:
        """Raise `LeaseLost` if one was lost, `Misuse` if it was given up. Costs no I/O."""
        self._core.check()

    def renew(self) -> None:
        """Extend all now, for example before a long step; else the keeper does it in time."""
        run(self._core.renew())

    def release(self) -> None:
        """Give all back. Doing it again does nothing.

        Raises what `Lease.release` raises, for the first that does, when all have been tried.
        """
        run(self._core.release())

    @whole_try
    def __enter__(self) -> Self:
        """Let the loss of one cancel the body from now on (async code, unless it has ``on_lost="flag"``)."""
        try:
            run(self._core.__aenter__())
        except BaseException as error:
            self._core._abandon(error)
            raise
        return self

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_several.Locks)
class Locks(Block):
    """The description of several locks that are taken together, made by `Client.all`. It holds no state.

    As a context manager it acquires all on entry, waiting as long as its *timeout*, and gives all back on exit.
    """

    __slots__ = ()

    _core: _several.Locks

    def __init__(self, core: _several.Locks) -> None:
        self._core = core

    @property
    def names(self) -> tuple[str, ...]:
        """What is locked, in the order in which it is taken."""
        return self._core.names

    def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Leases:
        """Wait until all are ours, at most *timeout* seconds for the whole: None waits for ever, 0 tries once.

        Raises what `Lock.acquire` raises, `NotAcquired` with the name and holder of the one that was missing, and
        then nothing is held.
        """
        taken: list[_lease.Lease] = []
        try:
            return Leases(run(self._core._take(timeout, taken)))
        except BaseException:
            leave(taken)
            raise

    def try_acquire(self) -> Leases | None:
        """Take all if all are free now, else return None. Raises only if the store is broken."""
        taken: list[_lease.Lease] = []
        try:
            return _maybe_leases(run(self._core._try_take(taken)))
        except BaseException:
            leave(taken)
            raise

    def __enter__(self) -> Leases:
        """Acquire, and let the loss of one cancel the body (async code, unless ``on_lost="flag"``)."""
        taken: list[_lease.Lease] = []
        try:
            return Leases(run(self._core._open(taken)))
        except BaseException:
            self._core._undo(taken)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


def _maybe_leases(core: Any) -> Leases | None:
    return None if core is None else Leases(core)
