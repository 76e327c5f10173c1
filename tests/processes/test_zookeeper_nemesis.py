"""Eight processes that take locks in a ZooKeeper server, while they, their connections and the server are stopped, cut
and killed at random: the fences are right, behind the fence check nothing is lost, and no node and no session is left.

By default there are some hundreds of grants; ``DIBS_TORTURE_GRANTS=10000`` has so many, which takes minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from servers.process import until
from servers.zookeeper import ZooKeeperServer

from .ordeal import (
    WORKERS,
    fences_are_unique_and_rise,
    go_through,
    no_acknowledged_update_is_lost,
    threads_and_connections_are_gone,
)
from .redis_toiler import NAMES
from .zookeeper_nemesis import ZooKeeperNemesis

TTL = 1.0

GRANTS = int(os.environ.get("DIBS_TORTURE_GRANTS", "200"))

PATIENCE = 60 + GRANTS / 8
"""Seconds."""


@pytest.mark.timeout(PATIENCE + 60)
def test_eight_processes_survive_all_that_happens_to_them_and_to_their_server(tmp_path: Path) -> None:
    """Fences are unique and rise, no acknowledged update is lost, and there is no node and no session in the end."""
    patience = 40.0  # the session of who only looks lasts 31 s, if its connection was just broken when it closed
    with ZooKeeperServer(tidy=True) as server:
        nodes, sessions = server.number("zk_znode_count"), server.sessions()
        nemesis = ZooKeeperNemesis(server, tmp_path, TTL, WORKERS)
        ordeal = go_through(nemesis, tmp_path, GRANTS, PATIENCE)

        for name in NAMES:
            fences_are_unique_and_rise(ordeal, name)
            no_acknowledged_update_is_lost(ordeal, name)
        threads_and_connections_are_gone(ordeal)
        until(lambda: server.sessions() == sessions, "the sessions of all have ended, those of the dead too", patience)
        until(lambda: server.number("zk_znode_count") == nodes + 1, "of all nodes only /dibs is left")
