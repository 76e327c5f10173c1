"""A guard in the memory of one process: for tests, for teaching, and for what the process itself serves."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from dibs.errors import Misuse
from dibs.guards.order import (
    SEALED,
    Mark,
    checked_claim,
    checked_epoch,
    checked_write,
    claimed,
    explain,
    may_claim,
    may_go_on,
    may_write,
    stale,
)

P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[MemoryGuard, P], R]) -> Callable[Concatenate[MemoryGuard, P], R]:
    """Run *method* alone. A signal handler that interrupts one would wait for ever or spoil its answer: refuse it."""

    @functools.wraps(method)
    def alone(self: MemoryGuard, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._mutex:
            if self._in_use:
                raise Misuse("a signal handler cannot use a MemoryGuard while the thread that it interrupted uses it")
            try:
                self._in_use = True
                return method(self, *args, **kwargs)
            finally:
                self._in_use = False

    return alone


class MemoryGuard:
    """Remembers in a dict. Threads and tasks may share it, and ``lock.guarded(guard)`` takes it as it is.

    It forgets with the process: a resource that outlives the process needs a guard that does. It keeps a mark for
    each name that it has seen, for ever: names that strangers choose have to be checked before.
    """

    def __init__(self, *, one_shot: bool = False, epoch: int = 0) -> None:
        self._one_shot, self._epoch = one_shot, checked_epoch(epoch)
        self._marks: dict[str, Mark] = {}
        self._mutex = threading.RLock()
        self._in_use = False  # by the thread that has the mutex, whose signal handlers get that as well

    @_alone
    def claim(self, name: str, fence: int) -> None:
        """Refuse all older fences of *name* from now on; `StaleFence` if this is one."""
        name, shown = checked_claim(self._epoch, name, fence)
        kept = self._marks.get(name, Mark())
        if not may_claim(kept, shown, one_shot=self._one_shot):
            raise stale(name, kept, shown)
        self._marks[name] = claimed(kept, shown)

    @_alone
    def write(self, name: str, fence: int, seq: int, digest: str = "") -> bool:
        """Tell whether write number *seq* shall be done: False if it was done already. `StaleFence` if refused."""
        name, shown = checked_write(self._epoch, name, fence, seq, digest)
        kept = self._marks.get(name, Mark())
        if not may_write(kept, shown, one_shot=self._one_shot):
            explain(name, kept, shown)
            return False
        self._marks[name] = shown
        return True

    def check(self, name: str, fence: int) -> None:
        """Raise `StaleFence` if a newer fence was here: for what was read, before it is shown to anybody."""
        name, shown = checked_claim(self._epoch, name, fence)
        kept = self._marks.get(name, Mark())
        if not may_go_on(kept, shown):
            raise stale(name, kept, shown)

    @_alone
    def seal(self, name: str, fence: int) -> bool:
        """Refuse *fence* as well from now on; tell whether it was not refused anyway."""
        name, shown = checked_claim(self._epoch, name, fence)
        kept = self._marks.get(name, Mark())
        goes_on = may_go_on(kept, shown)
        if goes_on:
            self._marks[name] = shown._replace(seq=SEALED)
        return goes_on

    def __repr__(self) -> str:
        return f"<MemoryGuard of {len(self._marks)} names>"
