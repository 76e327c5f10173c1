"""Eight processes that take locks in a ZooKeeper server, while they, their connections and the server are stopped, cut
and killed at random: the fences are right, behind the fence check nothing is lost, and no node and no session is left.

By default there are some hundreds of grants; ``DIBS_TORTURE_GRANTS=10000`` has so many, which takes minutes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from servers.process import until
from servers.zookeeper import ZooKeeperServer

from .redis_toiler import NAMES
from .tally import Tally
from .test_nemesis import facts
from .test_redis_nemesis import Ordeal, fences_are_unique_and_rise, no_acknowledged_update_is_lost, summary
from .zookeeper_nemesis import ZooKeeperNemesis

WORKERS, TTL = 8, 1.0

GRANTS = int(os.environ.get("DIBS_TORTURE_GRANTS", "200"))

PATIENCE = 60 + GRANTS / 8
"""Seconds."""


@pytest.mark.timeout(PATIENCE + 60)
def test_eight_processes_survive_all_that_happens_to_them_and_to_their_server(tmp_path: Path) -> None:
    """Fences are unique and rise, no acknowledged update is lost, and there is no node and no session in the end."""
    with ZooKeeperServer(tidy=True) as server:
        nodes, sessions = server.number("zk_znode_count"), server.sessions()
        for name in NAMES:
            (tmp_path / name).mkdir()
            Tally(tmp_path / name).create()
        nemesis = ZooKeeperNemesis(server, tmp_path, TTL, WORKERS)
        began = time.monotonic()
        with nemesis.at_work():
            nemesis.work(GRANTS, PATIENCE)
            nemesis.end()
        ordeal = Ordeal(tmp_path, nemesis, list(facts(tmp_path)), time.monotonic() - began)
        print("\n".join(summary(ordeal)))

        for name in NAMES:
            fences_are_unique_and_rise(ordeal, name)
            no_acknowledged_update_is_lost(ordeal, name)
        threads_and_connections_are_gone(ordeal)
        until(lambda: server.sessions() == sessions, "the sessions of all have ended, those of the dead too")
        until(lambda: server.number("zk_znode_count") == nodes + 1, "of all nodes only /dibs is left")


def threads_and_connections_are_gone(ordeal: Ordeal) -> None:
    """For each worker that lived to the end."""
    ends = ordeal.reported(what="ended")
    assert len(ends) == WORKERS
    assert [end["after"] for end in ends] == [end["before"] for end in ends]
