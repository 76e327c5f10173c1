"""Eight processes that take locks in Consul, while they, their connections and the server are stopped, cut and killed
at random: the fences are right, behind the fence check nothing is lost, and no session, ticket or lock is left.

The server has its data on disk. By default there are some hundreds of grants, and the server only stands still now and
then; ``DIBS_TORTURE_GRANTS=10000`` has so many, and kills it, which takes a quarter of an hour.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from servers.consul import ConsulServer
from servers.process import until

from .consul_nemesis import ConsulNemesis
from .redis_toiler import NAMES
from .tally import Tally
from .test_nemesis import facts
from .test_redis_nemesis import (
    Ordeal,
    fences_are_unique_and_rise,
    no_acknowledged_update_is_lost,
    summary,
)

WORKERS, TTL = 8, 0.5

GRANTS = int(os.environ.get("DIBS_TORTURE_GRANTS", "300"))

DEADLY = GRANTS >= 1000
"""Whether the server dies too."""

PATIENCE = 60 + GRANTS / 5
"""Seconds."""

MOST_THREADS, MOST_DESCRIPTORS = 3, 8
"""Of one client: it renews, it watches what nobody renews, it makes a session; and a connection for each that asks."""


@pytest.mark.timeout(PATIENCE + 60)
def test_eight_processes_survive_all_that_happens_to_them_and_to_their_server(
    start_consul: Callable[..., ConsulServer], tmp_path: Path
) -> None:
    """Fences are unique and rise, no acknowledged update is lost, and nothing but the fences stays anywhere."""
    server = start_consul(alone=False, config={"bootstrap_expect": 1})
    for name in NAMES:
        (tmp_path / name).mkdir()
        Tally(tmp_path / name).create()
    nemesis = ConsulNemesis(server, tmp_path, TTL, WORKERS, deadly=DEADLY)
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
    threads_and_connections_are_gone(ordeal)


def only_fences_stay(server: ConsulServer) -> None:
    """Of the dead there are sessions for twice their ttl; then nothing."""
    with dibs.connect(server.url) as client:
        for name in NAMES:
            client.lock(name).acquire(timeout=5).release()
    until(lambda: server.sessions() == [], "the sessions of the dead have ended")
    assert sorted(server.kept()) == [f"{server.root}/default/{name}/.last" for name in NAMES]


def threads_and_connections_are_gone(ordeal: Ordeal) -> None:
    """For each worker that lived to the end."""
    ends = ordeal.reported(what="ended")
    assert len(ends) == WORKERS
    for end in ends:
        assert end["after"] == end["before"]
        assert end["busy"]["threads"] <= end["before"]["threads"] + MOST_THREADS
        assert end["busy"]["descriptors"] <= end["before"]["descriptors"] + MOST_DESCRIPTORS
