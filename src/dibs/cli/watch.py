"""When the command has to end, and how hard: decided from the clock and the lease, without doing anything.

As long as renewals get through, nothing happens. A lease whose renewals fail is not lost yet, and at its end
another may hold the lock; so the command is asked to end (TERM) while *grace* seconds are left, and killed before
the last of them is over. If the store says that the lease is somebody else's already, it is asked at once.
"""

from __future__ import annotations

import math
from enum import Enum

TICK = 0.25
"""Seconds between two looks: how late a lease that somebody broke is noticed after the keeper heard of it. Timers
stand still while a machine sleeps, so it is also how late the loss is noticed after it woke up."""


class OnLost(Enum):
    """What a loss does to the command."""

    TERM = "term"
    """Ask it to end in time, then kill it."""
    KILL = "kill"
    """Let renewals try to the last moment, then kill it."""
    CONTINUE = "continue"
    """Nothing: the loss is only reported."""


class Cause(Enum):
    """Why the command was ended."""

    LOST = "lost"
    MAX_HOLD = "max_hold"


class Do(Enum):
    """What to do now."""

    NOTHING = "nothing"
    TERM = "term"
    KILL = "kill"


class RunWatch:
    """The decisions about one run. Moments are seconds on the clock of *started_at*."""

    def __init__(self, on_lost: OnLost, grace: float, max_hold: float | None, started_at: float) -> None:
        self.on_lost, self._grace = on_lost, grace
        self._end_at = math.inf if max_hold is None else started_at + max_hold
        self._margin = min(0.1, grace / 10)  # a kill takes a moment too
        self._valid_until = started_at  # nothing is known before the first look
        self._kill_at = math.inf
        self._done = Do.NOTHING
        self.cause: Cause | None = None
        """Why the command is being ended; None as long as it is not."""

    def look(self, now: float, left: float, lost: bool) -> Do:
        """Decide; *left* are the seconds for which the lease is still valid, if it is not *lost*."""
        if not lost:
            self._valid_until = now + left
        if now >= self._end_at:
            self._end(Cause.MAX_HOLD, now + self._grace)
        if self.on_lost is OnLost.TERM:
            self._ask_before_the_end(now, lost)
        elif self.on_lost is OnLost.KILL and (lost or now >= self._last_moment):
            self._end(Cause.LOST, now)
        if lost and self.cause is not None:
            self.cause = Cause.LOST  # also if it was being ended for another reason: this one is worse
        return self._due(now)

    def nap(self, now: float) -> float:
        """Tell for how long nothing can become due, if the lease is not renewed and not broken."""
        moments = [TICK, self._end_at - now, self._kill_at - now]
        if self.on_lost is OnLost.TERM:
            moments.append(self._valid_until - self._grace - now)
        if self.on_lost is not OnLost.CONTINUE:
            moments.append(self._last_moment - now)
        return min(moment for moment in moments if moment > 0)

    @property
    def _last_moment(self) -> float:
        return self._valid_until - self._margin

    def _ask_before_the_end(self, now: float, lost: bool) -> None:
        """End it for the loss, leaving it the grace, but never longer than the lease is known to be valid."""
        if lost:
            self._end(Cause.LOST, now + self._grace)
        elif now >= self._valid_until - self._grace:
            self._end(Cause.LOST, self._last_moment)
        if self.cause is not None:
            self._kill_at = min(self._kill_at, self._last_moment)

    def _end(self, cause: Cause, kill_at: float) -> None:
        self.cause = self.cause or cause
        self._kill_at = min(self._kill_at, kill_at)

    def _due(self, now: float) -> Do:
        if now >= self._kill_at and self._done is not Do.KILL:
            self._done = Do.KILL
        elif self.cause is not None and self._done is Do.NOTHING:
            self._done = Do.TERM
        else:
            return Do.NOTHING
        return self._done
