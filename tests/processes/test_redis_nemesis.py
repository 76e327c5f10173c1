"""Eight processes that take locks in a Redis or Valkey server, while they, their connections and the server are
stopped, cut and killed at random: the fences are right, and behind the fence check nothing is lost.

The server has ``appendfsync always``: with ``everysec`` it may put off the writing itself while an fsync lasts, and
kill -9 then forgets a grant that was confirmed. By default there is a thousand grants;
``DIBS_TORTURE_GRANTS=100000`` has so many, which takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from servers.process import until
from servers.redis import RedisServer
from tempo import took

from .ordeal import (
    WORKERS,
    fences_are_unique_and_rise,
    go_through,
    no_acknowledged_update_is_lost,
    threads_and_connections_are_gone,
)
from .redis_nemesis import RedisNemesis
from .redis_toiler import NAMES

TTL = 0.5

GRANTS = int(os.environ.get("DIBS_TORTURE_GRANTS", "1000"))

PATIENCE = 40 + GRANTS / 25
"""Seconds."""


@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_eight_processes_survive_all_that_happens_to_them_and_to_their_server(
    start_redis: Callable[..., RedisServer], kind: str, tmp_path: Path
) -> None:
    """Fences are unique and rise, no acknowledged update is lost, and nothing but the fences stays anywhere."""
    server = start_redis(kind, persistence="aof-always")
    nemesis = RedisNemesis(server, tmp_path, TTL, WORKERS)
    ordeal = go_through(nemesis, tmp_path, GRANTS, PATIENCE)

    assert ordeal.connections == 0
    for name in NAMES:
        fences_are_unique_and_rise(ordeal, name)
        no_acknowledged_update_is_lost(ordeal, name)
    only_fences_stay(server)
    threads_and_connections_are_gone(ordeal, threads=1, descriptors=3)
    until(lambda: server.info("clients")["connected_clients"] == "1", "only we who ask are connected")


def only_fences_stay(server: RedisServer) -> None:
    """Of the dead there are a lock and a ticket for a while: the next who comes is not held up by them."""
    with dibs.connect(server.url) as client:
        for name in NAMES:
            with took(TTL + 1):
                client.lock(name).acquire(timeout=5).release()
    keys = {key: server.command("PTTL", key) for key in server.command("KEYS", "*")}
    assert sorted(key for key, left in keys.items() if left == -1) == [
        f"dibs:{{default:{name}}}:fence" for name in NAMES
    ]
    for key in (key for key, left in keys.items() if left != -1):  # marks refuse for a while what may come late
        assert all(field[0] in "!@" for field in server.command("HKEYS", key)), key
