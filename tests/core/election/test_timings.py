"""The lengths of an election are refused unless each leaves room for the next."""

from __future__ import annotations

from datetime import timedelta

import pytest

from core.worlds import untouchable
from dibs.core.budgets import valid_until
from dibs.core.election.timings import checked_timings
from dibs.errors import Misuse


def test_the_defaults_follow_from_the_ttl() -> None:
    timings = checked_timings(15, None, None, None, 0.05, 1e6)
    assert (timings.ttl, timings.renew_deadline, timings.retry) == (15.0, 10.0, 2.0)
    assert timings.retry == checked_timings(timedelta(minutes=1), None, None, None, 0.05, 1e6).retry


@pytest.mark.parametrize("ttl", [0.05, 1, 15, 3600])
def test_stuck_work_is_ended_before_its_lease_by_default(ttl: float) -> None:
    timings = checked_timings(ttl, None, None, None, 0.05, 1e6)
    assert timings.renew_deadline + timings.stuck_after < valid_until(0.0, ttl)
    assert timings.grace > 0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"ttl": 0}, "ttl=0"),
        ({"ttl": 0.01}, "cannot express less"),
        ({"ttl": True}, "ttl=True"),
        ({"renew_deadline": 15}, "must be less than ttl=15"),
        ({"renew_deadline": 14.9}, "while the lease is still valid"),
        ({"renew_deadline": 5}, "is too short for ttl=15"),
        ({"renew_deadline": -1}, "more than 0"),
        ({"retry": 10}, "must be less than renew_deadline=10"),
        ({"retry": 9}, "by a fifth"),
        ({"retry": float("nan")}, "finite"),
        ({"stuck_after": 0}, "stuck_after=0"),
        ({"on_stuck": "kill"}, '"log" or "exit"'),
        ({"candidate": 7}, "a candidate is text"),
        ({"candidate": "x" * 995}, "a candidate has at most"),
        ({"name": ""}, "name"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(wrong: dict[str, object], complaint: str) -> None:
    options: dict[str, object] = {"name": "scheduler", "ttl": 15, **wrong}
    with pytest.raises(Misuse, match=complaint):
        untouchable().election(**options)  # type: ignore[arg-type]
