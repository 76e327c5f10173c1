"""Alarms of one event loop: in order, never before their moment, on one timer, and those that are cancelled leave."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dibs.runtime.alarms import Alarm, Alarms
from dibs.testing.simulation.scheduler import Scheduler, SimulatedTimer


class Loop:
    """A loop with a clock of its own, which counts the timers that are set."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.timers = 0
        self.rung: list[str] = []
        self.alarms = Alarms(lambda: self.scheduler.now, self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> SimulatedTimer:
        self.timers += 1
        return self.scheduler.call_later(seconds, call)

    def at(self, when: float) -> Alarm:
        def ring() -> None:
            assert self.scheduler.now >= when
            self.rung.append(f"{when:g}")

        return self.alarms.add(when, ring)

    def until(self, moment: float) -> None:
        """Let the time pass."""
        self.scheduler.run_for(moment - self.scheduler.now)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_they_ring_in_the_order_of_their_moments(loop: Loop) -> None:
    moments = [random.uniform(0, 10) for _ in range(50)]
    for moment in moments:
        loop.at(moment)
    loop.until(20)
    assert loop.rung == [f"{moment:g}" for moment in sorted(moments)]


def test_an_earlier_one_sets_the_timer_anew_and_a_later_one_does_not(loop: Loop) -> None:
    loop.at(5)
    loop.at(7)
    assert loop.timers == 1
    loop.at(2)
    assert loop.timers == 2
    loop.until(3)
    assert loop.rung == ["2"]


def test_what_was_cancelled_does_not_ring(loop: Loop) -> None:
    first, _ = loop.at(1), loop.at(2)
    first.cancel()
    first.cancel()  # again is no harm
    loop.until(3)
    assert loop.rung == ["2"]


def test_many_that_come_and_go_need_few_timers_and_no_room(loop: Loop) -> None:
    for number in range(1000):
        loop.alarms.add(30 + number / 1000, lambda: None).cancel()
    assert loop.timers == 1
    assert len(loop.alarms) < 100


def test_one_may_set_the_next(loop: Loop) -> None:
    def go_on() -> None:
        loop.at(2)

    loop.alarms.add(1, go_on)
    loop.until(3)
    assert loop.rung == ["2"]


def test_an_error_of_one_does_not_keep_the_others_from_ringing(loop: Loop) -> None:
    def fail() -> None:
        raise ValueError

    loop.alarms.add(1, fail)
    loop.at(1.5)
    with pytest.raises(ValueError):  # noqa: PT011 - it is ours; a loop logs it and goes on
        loop.until(3)
    loop.until(4)
    assert loop.rung == ["1.5"]
