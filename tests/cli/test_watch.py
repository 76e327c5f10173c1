"""The decisions about when a command must end, on a clock of numbers."""

from __future__ import annotations

import pytest

from dibs.cli.watch import TICK, Cause, Do, OnLost, RunWatch

GRACE = 10.0


def watch(on_lost: OnLost = OnLost.TERM, max_hold: float | None = None) -> RunWatch:
    return RunWatch(on_lost, GRACE, max_hold, started_at=100.0)


@pytest.mark.parametrize("on_lost", OnLost)
def test_nothing_happens_while_renewals_get_through(on_lost: OnLost) -> None:
    it = watch(on_lost)
    assert {it.look(100.0 + t, 20.0 + t % 10, lost=False) for t in range(1000)} == {Do.NOTHING}
    assert it.cause is None


def test_the_command_is_asked_to_end_when_only_the_grace_is_left() -> None:
    it = watch()
    assert it.look(110.0, 10.1, lost=False) is Do.NOTHING
    assert it.look(110.2, 9.9, lost=False) is Do.TERM
    assert it.cause is Cause.LOST


def test_the_command_is_killed_before_the_lease_ends() -> None:
    it = watch()
    it.look(110.0, 9.9, lost=False)
    assert it.look(119.7, 0.2, lost=False) is Do.NOTHING
    assert it.look(119.8, 0.1, lost=False) is Do.KILL


def test_a_renewal_that_comes_after_all_does_not_stop_the_end() -> None:
    it = watch()
    it.look(110.0, 9.9, lost=False)
    assert it.look(111.0, 29.0, lost=False) is Do.NOTHING
    assert it.look(119.9, 20.1, lost=False) is Do.KILL


def test_a_broken_lock_ends_the_command_at_once_and_kills_it_after_the_grace() -> None:
    it = watch()
    it.look(110.0, 25.0, lost=False)
    assert it.look(111.0, 0.0, lost=True) is Do.TERM
    assert it.look(120.9, 0.0, lost=True) is Do.NOTHING
    assert it.look(121.0, 0.0, lost=True) is Do.KILL


def test_the_grace_after_a_broken_lock_never_outlasts_the_lease() -> None:
    it = watch()
    it.look(110.0, 11.0, lost=False)
    assert it.look(112.0, 0.0, lost=True) is Do.TERM
    assert it.look(120.95, 0.0, lost=True) is Do.KILL


def test_whoever_stood_still_past_the_end_of_the_lease_kills_at_once() -> None:
    it = watch()
    it.look(110.0, 25.0, lost=False)
    assert it.look(200.0, 0.0, lost=True) is Do.KILL


def test_a_lease_that_was_lost_before_the_first_look_kills_at_once() -> None:
    assert watch().look(100.0, 0.0, lost=True) is Do.KILL


def test_each_step_is_taken_once() -> None:
    it = watch()
    steps = [it.look(110.0 + t / 10, max(0.0, 9.9 - t / 10), lost=t > 98) for t in range(200)]
    assert [step for step in steps if step is not Do.NOTHING] == [Do.TERM, Do.KILL]


def test_kill_lets_renewals_try_to_the_last_moment() -> None:
    it = watch(OnLost.KILL)
    assert it.look(110.0, 0.2, lost=False) is Do.NOTHING
    assert it.look(110.1, 0.1, lost=False) is Do.KILL
    assert it.cause is Cause.LOST


def test_kill_does_not_ask_when_the_lock_was_broken() -> None:
    it = watch(OnLost.KILL)
    it.look(110.0, 25.0, lost=False)
    assert it.look(111.0, 0.0, lost=True) is Do.KILL


def test_continue_leaves_the_command_alone() -> None:
    it = watch(OnLost.CONTINUE)
    assert it.look(110.0, 0.01, lost=False) is Do.NOTHING
    assert it.look(111.0, 0.0, lost=True) is Do.NOTHING
    assert it.cause is None


@pytest.mark.parametrize("on_lost", OnLost)
def test_max_hold_asks_and_kills_after_the_grace(on_lost: OnLost) -> None:
    it = watch(on_lost, max_hold=50.0)
    assert it.look(149.9, 25.0, lost=False) is Do.NOTHING
    assert it.look(150.0, 25.0, lost=False) is Do.TERM
    assert it.look(159.9, 25.0, lost=False) is Do.NOTHING
    assert it.look(160.0, 25.0, lost=False) is Do.KILL
    assert it.cause is Cause.MAX_HOLD


@pytest.mark.parametrize("on_lost", [OnLost.TERM, OnLost.KILL])
def test_a_loss_on_the_way_out_counts_more_than_max_hold(on_lost: OnLost) -> None:
    it = watch(on_lost, max_hold=50.0)
    it.look(150.0, 25.0, lost=False)
    it.look(151.0, 0.0, lost=True)
    assert it.cause is Cause.LOST


def test_a_lease_that_runs_out_shortens_the_grace_after_max_hold() -> None:
    it = watch(max_hold=50.0)
    it.look(150.0, 8.0, lost=False)
    assert it.look(157.9, 0.1, lost=False) is Do.KILL


@pytest.mark.parametrize("on_lost", OnLost)
@pytest.mark.parametrize("max_hold", [None, 7.3])
@pytest.mark.parametrize("left", [0.05, 3.0, 10.0, 10.1, 30.0])
def test_no_nap_passes_over_the_moment_of_a_step(on_lost: OnLost, max_hold: float | None, left: float) -> None:
    it, now, steps = watch(on_lost, max_hold), 100.0, []
    ends_at = now + left
    while now < 145.0:
        step = it.look(now, max(0.0, ends_at - now), lost=now >= ends_at)
        if step is not Do.NOTHING:
            steps.append((step, now))
        nap = it.nap(now)
        assert 0 < nap <= TICK
        now += nap
    if on_lost is not OnLost.CONTINUE:
        assert steps[-1][0] is Do.KILL
        assert steps[-1][1] < ends_at
