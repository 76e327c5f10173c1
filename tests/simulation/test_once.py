"""Seeded histories of a schedule with every fault on: no slot is started more often than allowed, no run is forgotten.

``DIBS_SIM_SEEDS=100000`` plays more of them: see `seeds`. A failure names its seed; ``play(seed).story()`` tells it.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from schedules import play
from seeds import BASE, SEEDS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dibs").propagate = False
    gc.disable()
    yield
    gc.enable()
    logging.getLogger("dibs").propagate = True


def test_no_history_breaks_a_rule() -> None:
    for seed in range(BASE, BASE + SEEDS // 40):
        outcome = play(seed)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"


def test_the_histories_have_every_fault_and_every_end() -> None:
    counts: Counter[str] = Counter()
    completed = 0
    for seed in range(150):
        outcome = play(seed)
        counts.update(outcome.counts)
        completed += outcome.completed
    expected = {
        "cancelled", "crashed", "stood still", "outage", "request lost", "reply lost", "request doubled",
        "already ran", "running now", "given up", "expired", "ZeroDivisionError",
    }  # fmt: skip
    assert {what for what in expected if counts[what] < 5} == set()
    assert completed > 450


def test_without_faults_every_slot_that_is_called_for_is_run_once() -> None:
    for seed in range(30):
        outcome = play(seed, 0.0)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"
        expected = {"already ran", "running now", "not due", "cancelled", "crashed", "stood still", "outage"}
        assert set(outcome.counts) <= expected
