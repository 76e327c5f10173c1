"""Whether a step asks for a ticket or waits with it right now: two steps at once would undo each other's work."""

from __future__ import annotations

OVERDUE = 0.5
"""Seconds by which a step may be late on a busy machine."""


class Attendance:
    """The step that asks or waits with one ticket right now, and when the last one did.

    At its end a step sets `until` to 0 and `seen_at` to the time, by assignments and not by a call: Ctrl-C comes at
    calls. If it comes all the same, the step is overdue some time later.
    """

    def __init__(self, until: float) -> None:
        self.until = self.seen_at = 0.0
        """`until`: the latest time at which the step of right now is done; 0 if there is no such step. `seen_at`: when
        a step last asked or waited; while one does, the latest time at which it is done."""
        self._overdue_at = 0.0
        """When `until` was first found to be past; 0 if it was not."""
        self.begin(until)

    def begin(self, until: float) -> None:
        """A step begins to ask or to wait, until *until* at the latest."""
        self._overdue_at = 0.0
        self.seen_at = self.until = until + OVERDUE

    def is_going_on(self, now: float) -> bool:
        """Whether a step asks or waits right now."""
        return now < self.until

    def is_over(self, now: float) -> bool:
        """Whether no step asks or waits. One that is overdue gets a moment more: this process may have stood still."""
        if self.until and not self._overdue_at and now >= self.until:
            self._overdue_at = now
        return not self.until or (0.0 < self._overdue_at <= now - OVERDUE)
