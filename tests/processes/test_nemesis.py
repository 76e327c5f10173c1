"""Workers that are stopped and killed at random, and a resource that checks the fence: nothing is lost, ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dibs
from dibs.testing.history import Hold, violations, writes_out_of_order

from .nemesis import Nemesis
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


def facts(folder: Path) -> Iterator[dict[str, Any]]:
    """What all workers wrote down."""
    for report in folder.glob("report-*"):
        yield from map(json.loads, report.read_text(encoding="ascii").splitlines())


def violations_of(reports: list[dict[str, Any]], killed_at: dict[int, float]) -> list[str]:
    """What no correct lock can have done. Who was told when is not known well enough to be judged here."""
    holds: dict[int, list[Hold]] = {}
    for fact in reports:
        match fact:
            case {"what": "granted", "pid": pid}:
                moments = {name: fact[name] for name in ("fence", "asked_at", "granted_at", "valid_until")}
                holds.setdefault(pid, []).append(Hold(**moments, who=str(pid)))
            case {"what": "releases" | "left", "pid": pid}:
                holds[pid][-1].left(fact["at"])
            case {"what": "given back", "pid": pid}:
                holds[pid][-1].given_back(fact["called_at"], fact["returned_at"])
            case {"what": "lost", "pid": pid}:
                holds[pid][-1].found_lost(fact["told_at"], fact["returned_at"])
    for pid, at in killed_at.items():
        for hold in holds.get(pid, [])[-1:]:
            if hold.over_from > at:
                hold.left(at)
    found = violations([hold for each in holds.values() for hold in each])
    return [str(each) for each in found if "told" not in each.rule]
