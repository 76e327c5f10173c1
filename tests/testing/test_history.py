"""The checks of a history: each fires on what it forbids, and on nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.testing.history import (
    FOREVER,
    Hold,
    Write,
    fences_out_of_order,
    impossible,
    overlaps,
    told_late,
    violations,
    writes_out_of_order,
)


def hold(fence: int, asked: float, granted: float, over_from: float, over_by: float = FOREVER) -> Hold:
    return Hold(fence, asked, granted, over_from, max(over_from, over_by), stopped_at=over_from)


GOOD = [hold(1, 0, 1, 2, 3), hold(2, 1, 4, 5, 6), hold(3, 0, 7, 8)]


def test_a_good_history_passes_every_check() -> None:
    assert violations(GOOD) == []


def test_two_grants_with_one_fence_are_found() -> None:
    assert "one fence" in str(fences_out_of_order([hold(1, 0, 1, 2), hold(1, 3, 4, 5)])[0])


def test_a_fence_that_falls_is_found() -> None:
    [found] = fences_out_of_order([hold(7, 0, 1, 2), hold(3, 1.5, 4, 5)])
    assert "not higher" in found.rule


def test_fences_of_asks_that_ran_at_once_may_come_in_any_order() -> None:
    assert fences_out_of_order([hold(7, 0, 2, 3), hold(3, 1, 4, 5)]) == []


def test_two_holders_at_once_are_found() -> None:
    [found] = overlaps([hold(1, 0, 1, 4), hold(2, 2, 3, 5)])
    assert found.rule == "two held the lock at once"


def test_a_hold_that_ends_when_the_next_begins_is_no_overlap() -> None:
    assert overlaps([hold(1, 0, 1, 4), hold(2, 2, 4, 5)]) == []


def test_an_overlap_with_a_long_hold_before_the_last_one_is_found() -> None:
    assert len(overlaps([hold(1, 0, 1, 100), hold(2, 2, 3, 4), hold(3, 5, 6, 7)])) == 2


def test_a_grant_that_fits_in_no_order_is_found() -> None:
    [found] = impossible([hold(1, 0, 5, 9, 10), hold(2, 1, 6, 11)])
    assert "granted" in found.rule


def test_an_end_that_fits_in_no_order_is_found() -> None:
    [found] = impossible([hold(1, 0, 1, 5, 5), hold(2, 2, 6, 3, 4)])
    assert "ended" in found.rule


def test_a_holder_that_is_told_after_its_deadline_is_found() -> None:
    late = hold(1, 0, 1, 5)
    late.valid_until = 4
    assert "later than its deadline" in told_late([late])[0].rule


def test_a_holder_that_stood_still_may_be_told_when_it_goes_on() -> None:
    stopped, after = hold(1, 0, 1, 5), hold(2, 0, 4.5, 6)
    stopped.valid_until, stopped.still_until = 4, 5
    assert told_late([stopped, after]) == []


def test_a_grant_before_the_holder_was_told_is_found() -> None:
    assert "before the holder was told" in told_late([hold(1, 0, 1, 5), hold(2, 0, 3, 6)])[0].rule


def test_a_holder_whose_lock_was_broken_on_purpose_may_be_told_later() -> None:
    broken, after = hold(1, 0, 1, 5), hold(2, 0, 3, 6)
    broken.broken(2)
    assert told_late([broken, after]) == []


def test_the_fences_of_a_store_that_forgot_are_checked_and_its_overlaps_are_not() -> None:
    assert violations([hold(1, 0, 1, 4), hold(2, 2, 3, 5)], exclusive=False) == []
    assert violations([hold(2, 0, 1, 4), hold(1, 2, 3, 5)], exclusive=False)


def test_a_guard_that_lets_an_older_writer_in_is_found() -> None:
    assert writes_out_of_order([Write(5, True), Write(4, True)]) == ["fence 4 was accepted after 5"]
    assert writes_out_of_order([Write(4, True), Write(5, False)]) == ["fence 5 was refused after 4"]
    assert writes_out_of_order([Write(4, True), Write(4, True), Write(3, False), Write(9, True)]) == []


@pytest.mark.parametrize(
    ("how", "over"),
    [("given_back", (6.0, 7.0)), ("found_lost", (5.0, 7.0)), ("left", (5.0, FOREVER))],
)
def test_the_window_of_the_end_follows_from_how_it_ended(how: str, over: tuple[float, float]) -> None:
    ended = Hold(1, 0, 1, valid_until=5.0)
    getattr(ended, how)(*((6.0,) if how == "left" else (6.0, 7.0)))
    assert (ended.over_from, ended.over_by) == over
    assert ended.stopped_at == 6


def test_a_grant_that_was_broken_may_have_ended_then() -> None:
    ended = Hold(1, 0, 1, valid_until=5.0)
    ended.given_back(3, 4)
    ended.broken(2)
    assert (ended.over_from, ended.over_by) == (2, 4)


moments = st.integers(0, 12)
windows = st.builds(
    lambda asked, ran, over, spread: (asked, asked + ran, asked + over, spread),
    moments,
    st.integers(0, 4),
    st.integers(0, 6),
    st.integers(0, 4) | st.none(),
)


@settings(max_examples=1500, deadline=None)
@given(st.lists(windows, min_size=1, max_size=4))
def test_the_walk_in_order_of_the_fences_finds_what_trying_everything_finds(
    found: list[tuple[int, int, int, int | None]],
) -> None:
    holds = [
        hold(fence, asked, granted, over, FOREVER if spread is None else over + spread)
        for fence, (asked, granted, over, spread) in enumerate(found)
    ]
    assert (impossible(holds) == []) == can_be_ordered(holds)


def can_be_ordered(holds: list[Hold]) -> bool:
    """Whether there are moments for all grants and ends, by trying every one that could matter."""
    moments = sorted({x for h in holds for x in (h.asked_at, h.granted_at, h.over_from, h.over_by) if x < FOREVER})

    def ends_of(hold: Hold, since: float) -> Iterator[float]:
        for granted in moments:
            if since <= granted and hold.asked_at <= granted <= hold.granted_at:
                yield from (end for end in moments if end >= granted and hold.over_from <= end <= hold.over_by)

    def fits(index: int, since: float) -> bool:
        return index == len(holds) or any(fits(index + 1, end) for end in set(ends_of(holds[index], since)))

    return fits(0, -FOREVER)


def test_a_long_history_is_checked_quickly() -> None:
    chance, now, holds = random.Random(1), 0.0, []
    for fence in range(20_000):
        now += chance.random()
        asked, granted = now - 5 * chance.random(), now + 0.1 * chance.random()
        now = max(granted, now + chance.random())
        holds.append(hold(fence, asked, granted, now, now + 0.2))
    assert violations(holds) == []
