"""Which slot it is: arithmetic that all machines do alike."""

from __future__ import annotations

import pytest

from core.worlds import untouchable
from dibs.core.once.slots import Every, Named, Slot, schedule_of
from dibs.errors import Misuse


@pytest.mark.parametrize(
    ("every", "now", "slot"),
    [
        (900.0, 0.0, Slot("1970-01-01T00:00:00Z", 0.0, 900.0)),
        (900.0, 899.999, Slot("1970-01-01T00:00:00Z", 0.0, 900.0)),
        (900.0, 900.0, Slot("1970-01-01T00:15:00Z", 900.0, 1800.0)),
        (0.25, 1.3, Slot("1970-01-01T00:00:01.250Z", 1.25, 1.5)),
    ],
)
def test_every_counts_from_the_beginning_of_1970(every: float, now: float, slot: Slot) -> None:
    assert Every(every).slot(now) == slot


@pytest.mark.parametrize("every", [0.01, 0.1, 0.3, 7.7, 900.0])
def test_slots_that_follow_each_other_are_called_differently(every: float) -> None:
    slots = [Every(every).slot(1.7e9 + every * (number + 0.5)) for number in range(200)]
    keys = [slot.key for slot in slots if slot is not None]
    assert len(set(keys)) == 200


def test_a_named_slot_is_itself_at_any_time() -> None:
    assert Named("v17").slot(0.0) == Named("v17").slot(1e9) == Slot("v17")


def test_a_cron_slot_knows_where_it_ends() -> None:
    slot = schedule_of(None, "0 3 * * *", None, "UTC").slot(1.7e9)
    assert slot is not None
    assert slot.at is not None
    assert slot.until == slot.at + 86_400


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({}, "exactly one of"),
        ({"slot": "a", "every": 3}, "exactly one of"),
        ({"cron": "0 3 * * *", "every": 3}, "exactly one of"),
        ({"slot": ""}, "slot"),
        ({"slot": 7}, "a slot is text"),
        ({"every": 0}, "every=0"),
        ({"every": 0.001}, "every=0.001"),
        ({"cron": 3}, "cron=3"),
        ({"cron": "nonsense"}, "no cron line"),
        ({"cron": "0 3 * * *", "tz": 2}, "tz=2"),
        ({"every": 3, "tz": "Europe/Berlin"}, "says what a cron line means"),
        ({"slot": "a", "retries": -1}, "retries=-1"),
        ({"slot": "a", "retries": True}, "retries=True"),
        ({"slot": "a", "late": 0}, "late=0"),
        ({"slot": "a", "min_hold": -3}, "min_hold=-3"),
        ({"slot": "a", "keep": float("inf")}, "keep=inf"),
        ({"slot": "a", "ttl": 0}, "ttl=0"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_sent(wrong: dict[str, object], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        untouchable().once("report", **wrong)  # type: ignore[arg-type]
