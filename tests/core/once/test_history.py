"""What is remembered of past runs, and what follows from it for a slot."""

from __future__ import annotations

import pytest

from dibs.core.once.history import (
    CRASHED,
    FAILED,
    MOST_BYTES,
    MOST_KEYS,
    MOST_RUNS,
    OK,
    RUNNING,
    History,
    Past,
    maybe_read,
    read,
)
from dibs.core.once.slots import Every, Slot
from dibs.errors import Misuse, SkipReason
from dibs.holder import Record


def run(slot: str, outcome: str = OK, at: float | None = None, attempt: int = 1, started: float = 1000.0) -> Past:
    return Past(slot, at, attempt, outcome, "", started, None if outcome == RUNNING else 1.0, "web-3", 17, "deploy")


def of(*runs: Past) -> History:
    history = History()
    for each in runs:
        history = history.begun(each, 0.0)
    return history


def record(data: bytes) -> Record:
    return Record("report", 5, data, 0.0, 60.0)


def test_what_is_written_is_what_is_read() -> None:
    history = of(run("a", FAILED), run("ü☃\n", RUNNING, 900.0)).begun(run("b"), 5.0)
    assert read(record(history.data())) == history
    assert read(None) == History()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b"\xff", b'{"dibs": "once 2", "runs": []}', b'{"dibs": "once 1"}']
)
def test_other_data_under_the_name_is_not_taken_for_a_history(data: bytes) -> None:
    assert maybe_read(record(data)) is None
    with pytest.raises(Misuse, match="take another name"):
        read(record(data))


@pytest.mark.parametrize(
    ("runs", "retries", "reason"),
    [
        ([], 0, None),
        ([run("a", OK)], 5, SkipReason.ALREADY_RAN),
        ([run("a", RUNNING)], 0, None),  # whether it still runs is the lock's to say
        ([run("a", CRASHED)], 0, SkipReason.GIVEN_UP),
        ([run("a", CRASHED)], 1, None),
        ([run("a", FAILED), run("a", CRASHED, attempt=2)], 1, SkipReason.GIVEN_UP),
        ([run("a", FAILED), run("a", OK)], 9, SkipReason.ALREADY_RAN),
        ([run("b", OK)], 0, None),
        ([run("a", OK), run("b", OK)], 0, SkipReason.ALREADY_RAN),
    ],
)
def test_a_slot_is_started_if_it_has_not_ended_well_and_may_be_tried(
    runs: list[Past], retries: int, reason: SkipReason | None
) -> None:
    refusal = of(*runs).refusal(Slot("a"), retries, 2000.0)
    assert (refusal.reason if refusal else None) == reason


def test_min_hold_keeps_the_next_start_away_but_hides_no_other_reason() -> None:
    history = History().begun(run("a", started=1000.0), 60.0)
    early = history.refusal(Slot("b"), 0, 1059.0)
    assert early is not None
    assert (early.reason, early.detail.count("1970-01-01T00:17:40Z")) == (SkipReason.NOT_DUE, 1)
    assert history.refusal(Slot("b"), 0, 1060.0) is None
    same = history.refusal(Slot("a"), 0, 1001.0)
    assert same is not None
    assert same.reason is SkipReason.ALREADY_RAN


def test_a_named_slot_is_known_long_after_its_run_is_told_no_more() -> None:
    history = of(*(run(f"v{number}") for number in range(MOST_RUNS + MOST_KEYS + 3)))
    assert len(history.runs) == MOST_RUNS
    assert len(history.keys) == MOST_KEYS
    assert history.refusal(Slot(f"v{MOST_RUNS}"), 0, 2000.0) is not None
    assert history.refusal(Slot("v0"), 0, 2000.0) is None, "here ends what is remembered"
    assert len(history.data()) < 100_000


def test_slots_with_long_names_fit_into_a_record_and_none_is_forgotten() -> None:
    """What is told of the oldest runs makes room, and their slots are known on."""
    names = [f"{number:04}" + "\U0001f600" * 240 for number in range(MOST_KEYS + 60)]
    history = of(*(run(name) for name in names))
    assert len(history.data()) <= MOST_BYTES
    assert history.runs[-1].slot == names[-1]
    assert len(history.runs) < MOST_RUNS
    assert all(history.refusal(Slot(name), 0, 2000.0) for name in names[-MOST_KEYS:])


def test_attempts_are_counted_on_when_the_first_are_told_no_more() -> None:
    retries = MOST_RUNS + 9
    history = of(*(run("a", FAILED, attempt=number) for number in range(1, retries + 1)))
    assert history.attempts(Slot("a")) == retries
    assert history.refusal(Slot("a"), retries, 2000.0) is None
    refusal = history.begun(run("a", FAILED, attempt=retries + 1), 0.0).refusal(Slot("a"), retries, 2000.0)
    assert refusal is not None
    assert refusal.reason is SkipReason.GIVEN_UP


def test_a_slot_that_is_older_than_all_that_is_told_is_not_started() -> None:
    every = Every(10.0)
    slots = [every.slot(10.0 * number) for number in range(MOST_RUNS + 1)]
    history = of(*(run(slot.key, at=slot.at) for slot in slots[1:] if slot))
    assert slots[0] is not None
    refusal = history.refusal(slots[0], 0, 2000.0)
    assert refusal is not None
    assert refusal.reason is SkipReason.ALREADY_RAN


def test_a_run_that_had_not_ended_has_crashed_when_its_name_is_free() -> None:
    history = of(run("a", FAILED), run("a", RUNNING, attempt=2))
    assert history.runs_now
    assert [each.outcome for each in history.crashed().runs] == [FAILED, CRASHED]
    assert not history.crashed().runs_now
    assert history.attempts(Slot("a")) == 2


def test_a_run_is_told_to_people() -> None:
    failed = run("a", FAILED, attempt=2)._replace(detail="ValueError: broken", took=3.26)
    assert str(failed) == (
        "a failed after 3.3 s, started 1970-01-01T00:16:40Z by web-3 pid 17 (user deploy), attempt 2: "
        "ValueError: broken"
    )
