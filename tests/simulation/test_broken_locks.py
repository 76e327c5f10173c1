"""Each lock that is broken on purpose is found within a few hundred histories: the checks can fire."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import broken
import pytest
from workload import AMNESIA, EVERYTHING, LATE, STORM, Mix, Parts, play

ENOUGH = 600
"""Histories within which a broken lock has to be found."""

OVERLAP, FENCE = "two held the lock at once", "two grants have one fence"
LEAK, REVIVED = "was never given back", "lives again"
EARLY, LONG = "too early at the server", "too late at the server"

BROKEN = {
    "release deletes without comparing the token": (OVERLAP, EVERYTHING, Parts(server=broken.DeletesWithoutCompare)),
    "a renewal revives what is over": (REVIVED, STORM, Parts(server=broken.RenewsWhatIsOver)),
    "validity on a wall clock that is set back": (OVERLAP, EVERYTHING, Parts(runtime=broken.TrustsTheWallClock)),
    "fences are a counter, and the memory is lost": (FENCE, AMNESIA, Parts(server=broken.CountsFences)),
    "fences are a time that two grants can share": (FENCE, EVERYTHING, Parts(server=broken.GivesOneFenceToAll)),
    "the ttl is counted from the answer": (EARLY, STORM, Parts(far=broken.CountsFromTheAnswer)),
    "a repeated ask leaves the end as it was": (EARLY, LATE, Parts(server=broken.KeepsTheFirstEnd)),
    "what is given back is not marked": (LEAK, LATE, Parts(server=broken.LeavesNoMark)),
    "each renewal adds the ttl to the end": (LONG, EVERYTHING, Parts(server=broken.AddsTheTtl)),
    "an unknown answer counts as a refusal": (LEAK, STORM, Parts(far=broken.TakesUnknownForRefused)),
    "an unknown renewal counts as done": (OVERLAP, STORM, Parts(far=broken.SaysYesToRenewals)),
    "a token is forgotten before it is given back": (LEAK, EVERYTHING, Parts(far=broken.ForgetsToGiveBack)),
    "a hint grants": (OVERLAP, EVERYTHING, Parts(far=broken.GrantsByHint)),
    "clocks run at rates that differ by thirty per cent": (OVERLAP, STORM._replace(rate=0.15), Parts()),
}
"""What is broken: the check that has to find it, under which faults, and the broken part.

That a renewal may shorten a lease, or does not compare the fence, is too rare for this, one in thousands: see
test_cases.py."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dibs").disabled = True
    gc.disable()
    yield
    gc.enable()
    logging.getLogger("dibs").disabled = False


@pytest.mark.parametrize(("rule", "mix", "parts"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_lock_is_found(rule: str, mix: Mix, parts: Parts) -> None:
    assert any(rule in wrong for seed in range(ENOUGH) for wrong in play(seed, mix, parts).wrong)
