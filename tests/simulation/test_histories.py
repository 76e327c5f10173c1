"""Seeded histories with every fault on: no lock is held twice, no fence falls, nobody is told late, nothing leaks.

``DIBS_SIM_SEEDS=100000`` plays more of them: see `seeds`. A failure names its seed and tells its story; to see it
again: ``play(seed, mix).story()``.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
from seeds import SEEDS, chunks
from workload import AMNESIA, CALM, EVERYTHING, JUMP, LATE, STORM, Mix, play

PARTS = {
    "everything": (EVERYTHING, 0.4),
    "storm": (STORM, 0.2),
    "late": (LATE, 0.2),
    "amnesia": (AMNESIA, 0.1),
    "jump": (JUMP, 0.1),
}
"""The mixes of faults, and the part of all histories that each has."""


def campaigns() -> Iterator[object]:
    for name, (mix, part) in PARTS.items():
        for seeds in chunks(SEEDS * part, 500):
            yield pytest.param(mix, seeds, id=f"{name} {seeds.start}-{seeds.stop - 1}")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The core logs a warning for each release that was not delivered; here there are thousands."""
    logging.getLogger("dibs").disabled = True
    gc.disable()  # it would walk the traces, over and over
    yield
    gc.enable()
    logging.getLogger("dibs").disabled = False


@pytest.mark.parametrize(("mix", "seeds"), list(campaigns()))
def test_no_history_breaks_a_rule(mix: Mix, seeds: range) -> None:
    for seed in seeds:
        outcome = play(seed, mix)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"


def test_a_late_copy_of_an_evicted_ask_is_refused_although_its_client_holds_the_next_lease() -> None:
    assert not play(648284486, JUMP).wrong


def test_the_histories_have_every_fault_and_every_outcome() -> None:
    """What never happens is not tested: each fault was injected, and each way to end was taken, many times."""
    counts: Counter[str] = Counter()
    grants = 0
    for seed in range(300):
        outcome = play(seed, STORM)
        counts.update(outcome.counts)
        grants += outcome.grants
    expected = {
        "request lost", "reply lost", "request delayed", "reply delayed", "request doubled", "hint lost",
        "request carried out again, much later", "request stuck", "process stood still", "crash planned",
        "cancel planned",
        "operator evicts", "outage", "NotAcquired", "LeaseLost", "OutcomeUnknown", "StoreUnavailable",
    }  # fmt: skip
    for seed in range(100):
        counts.update(play(seed, LATE).counts)
    assert {what for what in expected if counts[what] < 10} == set()
    assert counts["stale write refused"], "the guard was needed"
    assert grants > 900


def test_without_faults_everybody_gets_the_lock_and_nobody_loses_it() -> None:
    for seed in range(200):
        outcome = play(seed, CALM)
        assert not outcome.wrong
        assert not {"StoreUnavailable", "OutcomeUnknown"} & set(outcome.counts)
