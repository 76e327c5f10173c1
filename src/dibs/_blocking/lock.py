"""The blocking faces of a single lock; not `lock`, which in this package is the function."""

from __future__ import annotations

from typing import Any

from dibs._blocking.block import Block
from dibs._blocking.faces import faces
from dibs._blocking.lease import Lease
from dibs.core import guarded as _guarded
from dibs.core import lease as _lease
from dibs.core import lock as _lock
from dibs.core.checks import Seconds
from dibs.core.lease import leave
from dibs.core.lock import AS_THE_LOCK_SAYS, _AsTheLockSays
from dibs.runtime import run


@faces(_lock.Lock)
class Lock(Block):
    """The description of a lock, made by `Client.lock`. Acquiring it gives a `Lease`, which has all the state.

    As a context manager it acquires on entry, waiting as long as its *timeout*, and gives back on exit.
    """

    __slots__ = ()

    _core: _lock.Lock

    def __init__(self, core: _lock.Lock) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is locked."""
        return self._core.name

    def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Lease:
        """Wait until the lock is ours, at most *timeout* seconds: None waits for ever, 0 tries once.

        Raises `NotAcquired` with the holder when the time is up, `StoreUnavailable` if the store cannot be asked,
        and `Misuse` at once if this task or thread already holds the lock through this client.
        """
        taken: list[_lease.Lease] = []
        try:
            return Lease(run(self._core._take(timeout, taken)))
        except BaseException:
            leave(taken)
            raise

    def try_acquire(self) -> Lease | None:
        """Take the lock if it is free now, else return None. Raises only if the store is broken."""
        taken: list[_lease.Lease] = []
        try:
            return _maybe_lease(run(self._core._try_take(taken)))
        except BaseException:
            leave(taken)
            raise

    def guarded(self, guard: _guarded.Guard) -> Guarded:
        """Acquire, and show the new fence to *guard*, in one ``with``; see `dibs.guards`.

        From then on the guard refuses every holder before us, also one that goes on after a pause. At the end of the
        block it is told that no write of ours comes any more, and the lock is given back.

        Not for a shared lock or a semaphore: a guard refuses all holders but the newest.
        """
        return Guarded(self._core.guarded(_guarded.for_blocking(guard, self.name)))

    def __enter__(self) -> Lease:
        """Acquire, and let a loss cancel the body (async code, unless ``on_lost="flag"``)."""
        taken: list[_lease.Lease] = []
        try:
            return Lease(run(self._core._open(taken)))
        except BaseException:
            self._core._undo(taken)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_guarded.Guarded)
class Guarded(Block):
    """One block under a lock whose guard knows of it, as `Lock.guarded` returns it. Make a new one for each block."""

    __slots__ = ()

    _core: _guarded.Guarded

    def __init__(self, core: _guarded.Guarded) -> None:
        self._core = core

    def __enter__(self) -> Lease:
        """Acquire and claim; where the claim fails, give back."""
        try:
            return Lease(run(self._core.__aenter__()))
        except BaseException as error:
            self._core._abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


def _maybe_lease(core: Any) -> Lease | None:
    return None if core is None else Lease(core)
