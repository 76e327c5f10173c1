"""Eight processes that take locks in Consul, while they, their connections and the server are stopped, cut and killed
at random: the fences are right, behind the fence check nothing is lost, and no session, ticket or lock is left.

The server has its data on disk. By default there are some hundreds of grants, and the server only stands still now and
then; ``DIBS_TORTURE_GRANTS=10000`` has so many, and kills it, which takes a quarter of an hour.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from servers.consul import ConsulServer
from servers.process import until

from .consul_nemesis import ConsulNemesis
from .ordeal import (
    WORKERS,
    fences_are_unique_and_rise,
    go_through,
    no_acknowledged_update_is_lost,
    threads_and_connections_are_gone,
)
from .redis_toiler import NAMES

TTL = 0.5

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
    nemesis = ConsulNemesis(server, tmp_path, TTL, WORKERS, deadly=DEADLY)
    ordeal = go_through(nemesis, tmp_path, GRANTS, PATIENCE)

    assert ordeal.connections == 0
    for name in NAMES:
        fences_are_unique_and_rise(ordeal, name)
        no_acknowledged_update_is_lost(ordeal, name)
    only_fences_stay(server)
    threads_and_connections_are_gone(ordeal, threads=MOST_THREADS, descriptors=MOST_DESCRIPTORS)


def only_fences_stay(server: ConsulServer) -> None:
    """Of the dead there are sessions for twice their ttl; then nothing."""
    with dibs.connect(server.url) as client:
        for name in NAMES:
            client.lock(name).acquire(timeout=5).release()
    until(lambda: server.sessions() == [], "the sessions of the dead have ended")
    assert sorted(server.kept()) == [f"{server.root}/default/{name}/.last" for name in NAMES]
