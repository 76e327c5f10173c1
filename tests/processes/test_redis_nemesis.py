"""Eight processes that take locks in a Redis server, while they, their connections and the server are stopped, cut and
killed at random: the fences are right, and behind the fence check nothing is lost.

The server has ``appendfsync always``: with ``everysec`` it may put off the writing itself while an fsync lasts, and
kill -9 then forgets a grant that was confirmed. By default there are some thousands of grants;
``DIBS_TORTURE_GRANTS=100000`` has so many, which takes minutes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dibs
from dibs.testing.history import writes_out_of_order
from servers.process import until
from servers.redis import RedisServer

from .redis_nemesis import RedisNemesis
from .redis_toiler import NAMES
from .server_nemesis import ServerNemesis
from .tally import Tally
from .test_nemesis import facts, violations_of

WORKERS, TTL = 8, 0.5

GRANTS = int(os.environ.get("DIBS_TORTURE_GRANTS", "2000"))

PATIENCE = 40 + GRANTS / 25
"""Seconds."""


class Ordeal(NamedTuple):
    """What was left behind by one run."""

    folder: Path
    nemesis: ServerNemesis
    reports: list[dict[str, Any]]
    seconds: float

    def reported(self, **wanted: object) -> list[dict[str, Any]]:
        """The facts that say so."""
        return [fact for fact in self.reports if wanted.items() <= fact.items()]


@pytest.mark.timeout(PATIENCE + 60)
def test_eight_processes_survive_all_that_happens_to_them_and_to_their_server(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """Fences are unique and rise, no acknowledged update is lost, and nothing but the fences stays anywhere."""
    server = start_redis(persistence="aof-always")
    for name in NAMES:
        (tmp_path / name).mkdir()
        Tally(tmp_path / name).create()
    nemesis = RedisNemesis(server, tmp_path, TTL, WORKERS)
    began = time.monotonic()
    with nemesis.at_work():
        nemesis.work(GRANTS, PATIENCE)
        nemesis.end()
        assert nemesis.proxy.connections == 0
    ordeal = Ordeal(tmp_path, nemesis, list(facts(tmp_path)), time.monotonic() - began)
    print("\n".join(summary(ordeal)))

    for name in NAMES:
        fences_are_unique_and_rise(ordeal, name)
        no_acknowledged_update_is_lost(ordeal, name)
    only_fences_stay(server)
    threads_and_connections_are_gone(ordeal, server)


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


def only_fences_stay(server: RedisServer) -> None:
    """Of the dead there are a lock and a ticket for a while: the next who comes is not held up by them."""
    with dibs.connect(server.url) as client:
        for name in NAMES:
            began = time.monotonic()
            client.lock(name).acquire(timeout=5).release()
            assert time.monotonic() - began < TTL + 1
    left = [f"dibs:{{default:{name}}}:fence" for name in NAMES]
    assert sorted(server.command("KEYS", "*")) == left
    assert {server.command("PTTL", key) for key in left} == {-1}


def threads_and_connections_are_gone(ordeal: Ordeal, server: RedisServer) -> None:
    """For each worker that lived to the end, and in the eyes of the server."""
    ends = ordeal.reported(what="ended")
    assert len(ends) == WORKERS
    for end in ends:
        assert end["after"] == end["before"]
        assert end["busy"]["threads"] <= end["before"]["threads"] + 1
        assert end["busy"]["descriptors"] <= end["before"]["descriptors"] + 3
    until(lambda: server.info("clients")["connected_clients"] == "1", "only we who ask are connected")


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
