"""Seeded histories of shared locks and semaphores with every fault on: never more weight than slots, and no whole lock
beside a part. ``DIBS_SIM_SEEDS=100000`` plays more of them: see `seeds`.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator

import pytest
import share_histories
from seeds import SEEDS, chunks
from workload import AMNESIA, CALM, EVERYTHING, JUMP, LATE, STORM, Mix, Parts

MIXES = {
    "everything": (EVERYTHING, 0.4),
    "storm": (STORM, 0.2),
    "late": (LATE, 0.2),
    "amnesia": (AMNESIA, 0.1),
    "jump": (JUMP, 0.1),
}

ENOUGH = 300
"""Histories within which a broken lock has to be found."""

BROKEN = {
    "parts are not counted": ("held more than", Parts(server=share_histories.CountsNobody)),
    "one that is given back frees all": ("not alone", Parts(server=share_histories.ForgetsTheOthers)),
    "the name ends with the first of them": ("not alone", Parts(server=share_histories.EndsWithTheFirst)),
}
"""What is broken, and the check that has to find it."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dibs").disabled = True
    gc.disable()
    yield
    gc.enable()
    logging.getLogger("dibs").disabled = False


def campaigns() -> Iterator[object]:
    for name, (mix, part) in MIXES.items():
        for seeds in chunks(SEEDS * part / 8, 250):
            yield pytest.param(mix, seeds, id=f"{name} {seeds.start}-{seeds.stop - 1}")


@pytest.mark.parametrize(("mix", "seeds"), list(campaigns()))
def test_no_history_breaks_a_rule(mix: Mix, seeds: range) -> None:
    for seed in seeds:
        outcome = share_histories.play(seed, mix)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"


def test_the_histories_have_parts_and_wholes_and_several_at_once() -> None:
    counts: Counter[str] = Counter()
    for seed in range(150):
        counts.update(share_histories.play(seed, STORM).counts)
    expected = {"parts", "wholes", "together", "operator evicts", "LeaseLost", "NotAcquired", "OutcomeUnknown"}
    assert {what for what in expected if counts[what] < 20} == set()


def test_without_faults_everybody_gets_its_part_and_nobody_loses_it() -> None:
    for seed in range(100):
        outcome = share_histories.play(seed, CALM)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"
        assert not {"StoreUnavailable", "OutcomeUnknown"} & set(outcome.counts)


@pytest.mark.parametrize(("rule", "broken"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_lock_is_found(rule: str, broken: Parts) -> None:
    assert any(rule in wrong for seed in range(ENOUGH) for wrong in share_histories.play(seed, STORM, broken).wrong)
