"""Many moments, one timer of the event loop: most alarms are cancelled long before they are due, and cost little.

A timer of the loop for each lease would be a tenth of what it costs to take a lock and give it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from dibs.runtime.runtime import Timer

Later = Callable[[float, Callable[[], None]], Timer]
"""Does a call after so many seconds."""


class Alarm:
    """Something to be done at a moment."""

    __slots__ = ("_alarms", "call")

    def __init__(self, alarms: Alarms, call: Callable[[], None]) -> None:
        self._alarms = alarms
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not do it."""
        if self.call is not None:
            self.call = None
            self._alarms.drop()


class Alarms:
    """All alarms of one event loop, by the moment they are due."""

    __slots__ = ("_count", "_heap", "_later", "_live", "_now", "_timer", "_timer_at")

    def __init__(self, now: Callable[[], float], later: Later) -> None:
        self._now, self._later = now, later
        self._heap: list[tuple[float, int, Alarm]] = []
        self._count = self._live = 0
        self._timer: Timer | None = None
        self._timer_at = math.inf

    def __len__(self) -> int:
        """How many are kept, those included that were cancelled and not cleared yet."""
        return len(self._heap)

    def add(self, when: float, call: Callable[[], None]) -> Alarm:
        """Do *call* at the moment *when*, and never before."""
        alarm = Alarm(self, call)
        self._count += 1
        self._live += 1
        heappush(self._heap, (when, self._count, alarm))
        if when < self._timer_at:
            self._set(when)
        return alarm

    def drop(self) -> None:
        """One was cancelled. When most are, they are cleared, so that none pile up.

        The timer stays, also when it has nothing left to ring for: the next alarm is most likely later.
        """
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [item for item in self._heap if item[2].call is not None]
            heapify(self._heap)

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._later(max(0.0, when - self._now()), self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, math.inf
        try:
            while self._heap and (self._heap[0][2].call is None or self._heap[0][0] <= self._now()):
                alarm = heappop(self._heap)[2]
                call, alarm.call = alarm.call, None
                if call is not None:
                    self._live -= 1
                    call()
        finally:
            if self._live:
                self._set(self._heap[0][0])
