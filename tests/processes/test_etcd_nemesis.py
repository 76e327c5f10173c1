"""Eight processes that take locks in an etcd server, while they, their connections and the server are stopped, cut and
killed at random: the fences are right, behind the fence check nothing is lost, and no key and no lease is left.

By default there are some hundreds of grants; ``DIBS_TORTURE_GRANTS=10000`` has so many, which takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
from servers.etcd import EtcdServer
from servers.process import until

from .etcd_nemesis import EtcdNemesis
from .ordeal import (
    WORKERS,
    fences_are_unique_and_rise,
    go_through,
    no_acknowledged_update_is_lost,
    threads_and_connections_are_gone,
)
from .redis_toiler import NAMES

TTL = 0.5

GRANTS = int(os.environ.get("DIBS_TORTURE_GRANTS", "200"))

PATIENCE = 60 + GRANTS / 8
"""Seconds."""


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.mark.timeout(PATIENCE + 60)
def test_eight_processes_survive_all_that_happens_to_them_and_to_their_server(
    server: EtcdServer, tmp_path: Path
) -> None:
    """Fences are unique and rise, no acknowledged update is lost, and there is no key and no lease in the end."""
    nemesis = EtcdNemesis(server, tmp_path, TTL, WORKERS)
    ordeal = go_through(nemesis, tmp_path, GRANTS, PATIENCE)

    assert ordeal.connections == 0
    for name in NAMES:
        fences_are_unique_and_rise(ordeal, name)
        no_acknowledged_update_is_lost(ordeal, name)
    nothing_stays(server)
    threads_and_connections_are_gone(ordeal, threads=1, descriptors=4)


def nothing_stays(server: EtcdServer) -> None:
    """Of the dead there are keys and leases for a while: then nothing."""
    with dibs.connect(server.url) as client:
        for name in NAMES:
            client.lock(name).acquire(timeout=10).release()
    until(lambda: server.keys_of_locks() == [], "no key is left, but marks of what was given back")
    marks = len(server.keys_under())
    until(lambda: len(server.leases()) <= marks, "no lease is left, but those of the marks")
