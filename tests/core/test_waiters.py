"""The line of waiters inside one client, also when Ctrl-C comes in the middle of it."""

from __future__ import annotations

import pytest

from dibs.core.waiters import Waiters
from dibs.runtime.threads import ThreadEvent, ThreadRuntime


class Interrupted(ThreadEvent):
    def set(self) -> None:
        raise KeyboardInterrupt


def turns() -> Waiters:
    runtime = ThreadRuntime()
    return Waiters(runtime, runtime.mutex())


def test_the_first_has_the_turn_and_passes_it_on() -> None:
    line = turns()
    first, second = line.place(), line.place()
    line.join("a", first)
    line.join("a", second)
    assert (first.is_set(), second.is_set()) == (True, False)
    line.leave("a", first)
    assert second.is_set()
    line.leave("a", second)
    assert "a" not in line


def test_who_was_interrupted_in_joining_leaves_nothing_behind() -> None:
    line, place = turns(), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        line.join("a", place)
    line.leave("a", place)
    assert "a" not in line


def test_to_leave_twice_or_without_a_place_does_no_harm() -> None:
    line, first, never = turns(), ThreadEvent(), ThreadEvent()
    line.join("a", first)
    line.leave("a", never)
    assert "a" in line
    line.leave("a", first)
    line.leave("a", first)
    assert "a" not in line
