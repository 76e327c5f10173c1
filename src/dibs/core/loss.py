"""Whether, when and why a lease was lost. The clock decides, at every look, and a loss is final.

A lease is lost at its own deadline whether or not anybody runs at that moment: every look compares the clock
first. So nothing can make a lost lease look held: neither a keeper that died, nor a blocked loop, nor a renewal
that was confirmed too late.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from dibs.core.budgets import valid_until
from dibs.core.checks import Seconds, checked_timeout
from dibs.core.copying import NotCopied
from dibs.core.deadline import Deadline
from dibs.errors import LossReason

if TYPE_CHECKING:
    from dibs.runtime import Runtime, Timer


class LossHost(Protocol):
    """What a loss needs of the client whose lease it is about."""

    @property
    def runtime(self) -> Runtime:
        """Its clock, timers and events."""

    @property
    def mutex(self) -> AbstractContextManager[Any]:
        """Guards what several threads change; a forked child has a fresh one, so it is looked up at each use."""


class Loss(NotCopied):
    """The loss of one lease, as a flag: ``if lease.lost``, ``lease.lost.wait(1)``."""

    __slots__ = ("_calls", "_cause", "_end", "_host", "_open", "_timer", "_until")

    _instead = "ask the lease, in the process that holds it"

    def __init__(self, host: LossHost, sent_at: float, ttl: float, max_hold: float | None) -> None:
        self._host = host  # its mutex is looked up at each use: a forked child has a fresh one
        self._end = None if max_hold is None else sent_at + max_hold
        self._until = self._bounded(valid_until(sent_at, ttl))
        self._open = True
        self._cause: LossReason | None = None
        self._calls: list[Callable[[], None]] | None = None
        self._timer: Timer | None = None

    def __bool__(self) -> bool:
        """Whether the lease was lost, by the clock of this moment."""
        return self._reason is not None

    def is_set(self) -> bool:
        """Whether the lease was lost, by the clock of this moment."""
        return self._reason is not None

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the lease is lost or given up, at most *timeout* seconds; tell whether it was lost."""
        event, now = self._host.runtime.event(), self._host.runtime.now
        until = Deadline(now, checked_timeout(timeout))
        self._when_over(event.set)
        try:
            while self._can_happen and not until.passed():
                await event.wait(min(until.left(), max(0.0, self._deadline - now())))
        finally:
            self._forget(event.set)
        return bool(self)

    def __repr__(self) -> str:
        return f"<Loss {self._reason.value}>" if self._reason else "<Loss: not lost>"

    # --- for the lease and the keeper ----------------------------------------------------------------------

    @property
    def _deadline(self) -> float:
        """The moment at which it is lost if no renewal succeeds."""
        return self._until

    @property
    def _reason(self) -> LossReason | None:
        """Why it was lost; None if it was not."""
        if self._open and self._host.runtime.now() >= self._deadline:
            self._happen(LossReason.MAX_HOLD if self._deadline == self._end else LossReason.EXPIRED)
        return self._cause

    @property
    def _can_happen(self) -> bool:
        """Whether the lease is held: not lost, and not given up."""
        return self._reason is None and self._open

    @property
    def _is_open(self) -> bool:
        """Whether nobody has found it lost or given it up so far; the clock is not asked."""
        return self._open

    def _happen(self, reason: LossReason) -> None:
        """The lease is over, for ever."""
        self._finish(reason)

    def _settle(self) -> bool:
        """The lease is given up: from now on it cannot be lost. False if it was over already."""
        return self._reason is None and self._finish(None)

    def _found(self, reason: LossReason) -> None:
        """The store said, when the lease was given back, that it was not ours any more."""
        self._cause = reason

    def _extend(self, sent_at: float, ttl: float) -> bool:
        """A renewal sent at *sent_at* was confirmed. False if the lease was over by then: it stays so."""
        with self._host.mutex:
            if not self._open or self._host.runtime.now() >= self._until:
                return False
            self._until = max(self._until, self._bounded(valid_until(sent_at, ttl)))
            return True

    def _left_to_hold(self, now: float, ttl: float) -> float:
        """How long a renewal at *now* should be: the ttl, or less when *max_hold* is near."""
        if self._end is None:
            return ttl
        to_the_end = (self._end - now + 0.003) / 0.99  # what `valid_until` makes just more than the end of
        return min(ttl, max(to_the_end, 0.1 * ttl))

    def _when_over(self, call: Callable[[], None]) -> None:
        """Do *call* when the lease is lost or given up; at once if it is."""
        with self._host.mutex:
            is_open = self._open
            if is_open:
                self._calls = [*(self._calls or ()), call]
        if not is_open:
            call()

    def _forget(self, call: Callable[[], None]) -> None:
        """Do not do *call* any more."""
        with self._host.mutex:
            if self._calls and call in self._calls:
                self._calls.remove(call)
            if not self._calls and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _watch(self) -> None:
        """Look at the deadline by a timer that does no I/O, where the runtime has timers."""
        if self._can_happen and self._calls:
            self._timer = self._host.runtime.call_at(self._deadline, self._watch)

    def _finish(self, reason: LossReason | None) -> bool:
        with self._host.mutex:
            if not self._open:
                return False
            self._open, self._cause = False, reason
            calls, self._calls = self._calls, None
        for call in calls or ():
            call()
        return True

    def _bounded(self, moment: float) -> float:
        return moment if self._end is None else min(moment, self._end)
