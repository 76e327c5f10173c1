"""Workers that are stopped and killed at random, and a resource that checks the fence: nothing is lost, ever."""

from __future__ import annotations

from itertools import pairwise

import dibs
from dibs.testing.history import writes_out_of_order

from .nemesis import Nemesis
from .ordeal import facts, violations_of
from .stage import Stage
from .tally import Tally

WORKERS, TTL = 5, 0.3

KILLS, OVERTAKINGS = 8, 8


def test_what_was_acknowledged_is_there(stage: Stage) -> None:
    """Each increment that a worker knows of is in the tally, and the tally has none that nobody tried."""
    tally = Tally(stage.folder)
    tally.create()
    with dibs.connect(stage.url) as client:
        nemesis = Nemesis(stage, client, TTL, WORKERS)
        nemesis.work(KILLS, OVERTAKINGS)
        nemesis.end()
    reports = list(facts(stage.folder))
    acts = {what: {fact["act"] for fact in reports if fact["what"] == what} for what in ("tries", "done", "refused")}
    accepted, unknown = tally.accepted(), acts["tries"] - acts["done"] - acts["refused"]

    assert tally.value() == len(accepted)
    assert acts["done"] <= set(accepted) <= acts["done"] | unknown
    assert len(unknown) <= len(nemesis.killed_at)  # each of the dead took one secret with it at most

    assert writes_out_of_order(tally.shown()) == []
    assert all(before < after for before, after in pairwise(accepted.values()))

    found = violations_of(reports, nemesis.killed_at)
    assert not found, "\n".join(found)
    assert any(fact["what"] == "lost" for fact in reports)
