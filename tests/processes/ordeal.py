"""What workers, their connections and their server go through while a nemesis is at work, and what has to be true then.

What is left on the server is for each test to say.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from dibs.testing.history import Hold, violations, writes_out_of_order

from .redis_toiler import NAMES
from .server_nemesis import ServerNemesis
from .tally import Tally

WORKERS = 8


class Ordeal(NamedTuple):
    """What was left behind by one run."""

    folder: Path
    nemesis: ServerNemesis
    reports: list[dict[str, Any]]
    seconds: float
    connections: int
    """To the proxy, when the workers had ended and it had not."""

    def reported(self, **wanted: object) -> list[dict[str, Any]]:
        """The facts that say so."""
        return [fact for fact in self.reports if wanted.items() <= fact.items()]


def go_through(nemesis: ServerNemesis, folder: Path, grants: int, patience: float) -> Ordeal:
    """Let the *nemesis* do harm until there were so many *grants*, then let the workers finish; print what happened."""
    for name in NAMES:
        (folder / name).mkdir()
        Tally(folder / name).create()
    began = time.monotonic()
    with nemesis.at_work():
        nemesis.work(grants, patience)
        nemesis.end()
        connections = nemesis.proxy.connections
    ordeal = Ordeal(folder, nemesis, list(facts(folder)), time.monotonic() - began, connections)
    print("\n".join(summary(ordeal)))
    return ordeal


def fences_are_unique_and_rise(ordeal: Ordeal, name: str) -> None:
    """In the order in which they were asked for; and no two held the lock at once who had reason to believe it."""
    found = violations_of(ordeal.reported(name=name), ordeal.nemesis.killed_at)
    assert not found, "\n".join(found)
    assert len(ordeal.reported(name=name, what="granted")) > 10


def no_acknowledged_update_is_lost(ordeal: Ordeal, name: str) -> None:
    """Each increment that a worker knows of is in the tally, and the tally has none that nobody tried."""
    tally = Tally(ordeal.folder / name)
    tries, done, refused = (
        {fact["act"] for fact in ordeal.reported(name=name, what=what)} for what in ("tries", "done", "refused")
    )
    accepted, unknown = tally.accepted(), tries - done - refused
    assert tally.value() == len(accepted)
    assert done <= set(accepted) <= done | unknown
    assert len(unknown) <= len(ordeal.nemesis.killed_at)
    assert writes_out_of_order(tally.shown()) == []
    assert all(before < after for before, after in pairwise(accepted.values()))


def threads_and_connections_are_gone(ordeal: Ordeal, **more: int) -> None:
    """For each worker that lived to the end; and while it worked it had only so many *more*."""
    ends = ordeal.reported(what="ended")
    assert len(ends) == WORKERS
    for end in ends:
        assert end["after"] == end["before"]
        for what, count in more.items():
            assert end["busy"][what] <= end["before"][what] + count


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


def summary(ordeal: Ordeal) -> Iterator[str]:
    """What happened, for the documentation: see it with ``pytest -s``."""
    grants = len(ordeal.reported(what="granted"))
    yield f"\n{grants} grants in {ordeal.seconds:.0f} s to {len(ordeal.nemesis.killed_at) + WORKERS} processes"
    yield from (f"{count:6} {what}" for what, count in ordeal.nemesis.done.most_common())
    for what in "given back", "lost", "left", "refused":
        yield f"{len(ordeal.reported(what=what)):6} {what}"
    for why, count in Counter(fact["why"] for fact in ordeal.reported(what="nothing")).items():
        yield f"{count:6} not acquired: {why}"
    yield f"{sum(overlaps(ordeal, name) for name in NAMES):6} leases held on to after the next was granted"


def overlaps(ordeal: Ordeal, name: str) -> int:
    """How many went on although the next had the lock already: they stood still, and nobody could tell them."""
    last: dict[int, dict[str, Any]] = {}
    spans = []
    for fact in ordeal.reported(name=name):
        if fact["what"] == "granted":
            last[fact["pid"]] = fact
        elif fact["what"] == "releases":
            spans.append((last[fact["pid"]]["fence"], last[fact["pid"]]["granted_at"], fact["at"]))
    return sum(after[1] < before[2] for before, after in pairwise(sorted(spans)))
