"""Seeded histories of elections with every fault on: no two lead under a valid lease, and everybody is told in time.

``DIBS_SIM_SEEDS=100000`` plays more of them: see `seeds`. A failure names its seed;
``campaign(seed, faults).story()`` tells it.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from campaigns import EVERY_FAULT, FORGETS, NO_FAULT, Faults, campaign
from seeds import BASE, SEEDS


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dibs").disabled = True
    gc.disable()
    yield
    gc.enable()
    logging.getLogger("dibs").disabled = False


@pytest.mark.parametrize(
    ("faults", "seeds"), [(EVERY_FAULT, SEEDS // 60), (FORGETS, SEEDS // 240)], ids=["every fault", "amnesia"]
)
def test_no_history_breaks_a_rule(faults: Faults, seeds: int) -> None:
    for seed in range(BASE, BASE + seeds):
        outcome = campaign(seed, faults)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"


def test_the_histories_have_every_fault_and_every_end_of_a_term() -> None:
    """What never happens is not tested."""
    counts: Counter[str] = Counter()
    terms = 0
    for seed in range(100):
        outcome = campaign(seed, EVERY_FAULT)
        counts.update(outcome.counts)
        terms += outcome.terms
    expected = {
        "stood still", "crashed", "stopped", "outage", "evicted", "request lost", "reply lost", "request doubled",
        "told: expired", "told: evicted", "told: stepped down", "worked on in spite", "stale write refused",
    }  # fmt: skip
    assert {what for what in expected if counts[what] < 5} == set()
    assert terms > 250


def test_without_faults_the_first_leader_leads_until_it_steps_down() -> None:
    for seed in range(25):
        outcome = campaign(seed, NO_FAULT)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"
        assert set(outcome.counts) <= {"write accepted", "told: stepped down"} | {
            what for what, count in outcome.counts.items() if not count
        }
