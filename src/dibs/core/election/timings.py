"""The lengths of time of an election, checked together: each must leave room for the next."""

from __future__ import annotations

from typing import NamedTuple

from dibs.core.budgets import RENEW_AT, valid_until
from dibs.core.checks import checked_length, shown
from dibs.errors import Misuse

ROOM = 1.2
"""How many times the shorter length the longer one must be: jitter, and a machine that is late, fit in between."""

LONGEST_RETRY = 2.0
"""Seconds: how long a candidate pauses by default, whatever the ttl."""


class Timings(NamedTuple):
    """The lengths of one election, in seconds."""

    ttl: float
    renew_deadline: float
    """How long after the last renewal that succeeded the work is told to stop."""
    retry: float
    """How long a candidate pauses, on average, before it campaigns again."""
    stuck_after: float
    """How long after it was told to stop the work counts as stuck."""

    @property
    def grace(self) -> float:
        """How long the lease is still valid when the work is told to stop because no renewal succeeds."""
        return valid_until(0.0, self.ttl) - self.renew_deadline


def checked_timings(
    ttl: object, renew_deadline: object, retry: object, stuck_after: object, shortest_ttl: float, longest_ttl: float
) -> Timings:
    """Return the timings of an election that can work: ttl > renew_deadline > retry."""
    length = checked_length(ttl, "ttl", at_least=shortest_ttl, at_most=longest_ttl)
    valid = valid_until(0.0, length)
    stop = length * 2 / 3 if renew_deadline is None else checked_length(renew_deadline, "renew_deadline")
    pause = min(LONGEST_RETRY, length / 7.5) if retry is None else checked_length(retry, "retry")
    if stop >= valid:
        raise Misuse(
            f"renew_deadline={shown(renew_deadline)} must be less than ttl={shown(ttl)}: the work has to stop while "
            f"the lease is still valid, which it is for {valid:g} seconds"
        )
    if stop < length * RENEW_AT * ROOM:
        raise Misuse(
            f"renew_deadline={shown(renew_deadline)} is too short for ttl={shown(ttl)}: the lease is renewed every "
            f"third of its ttl, so a good leader would be told to stop; take at least {length * RENEW_AT * ROOM:g}"
        )
    if pause * ROOM > stop:
        raise Misuse(
            f"retry={shown(retry)} must be less than renew_deadline={stop:g}, by a fifth: a candidate that pauses for "
            "longer leaves the place vacant for longer than a failing leader has to stop"
        )
    stuck = 0.9 * (valid - stop) if stuck_after is None else checked_length(stuck_after, "stuck_after")
    return Timings(length, stop, pause, stuck)
