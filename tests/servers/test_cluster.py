"""The cluster serves all slots, and answers as clients must expect while they move."""

from __future__ import annotations

import pytest

from servers.cluster import RedisCluster
from servers.resp import RespError

KEY = "{invoice}:42"


def test_each_node_serves_its_slots(redis_cluster: RedisCluster) -> None:
    """The owner takes the key, the others say who it is."""
    slot = redis_cluster.slot(KEY)
    owner, *others = redis_cluster.owner(slot), *redis_cluster.others(slot)
    assert owner.command("SET", KEY, "value") == "OK"
    for other in others:
        with pytest.raises(RespError, match=f"MOVED {slot} 127.0.0.1:{owner.port}"):
            other.command("GET", KEY)


def test_a_slot_moves_with_its_keys(redis_cluster: RedisCluster) -> None:
    """Afterwards the new owner has them, and the old one says so."""
    slot = redis_cluster.slot(KEY)
    old, new = redis_cluster.owner(slot), redis_cluster.others(slot)[0]
    old.command("SET", KEY, "value")
    redis_cluster.move(slot, new)
    assert new.command("GET", KEY) == "value"
    with pytest.raises(RespError, match=f"MOVED {slot} 127.0.0.1:{new.port}"):
        old.command("GET", KEY)


def test_a_slot_on_its_way(redis_cluster: RedisCluster) -> None:
    """Its owner answers ASK for a key it does not have, and TRYAGAIN if it has only some of a script's keys."""
    slot = redis_cluster.slot(KEY)
    old, new = redis_cluster.owner(slot), redis_cluster.others(slot)[0]
    old.command("SET", KEY, "value")
    with redis_cluster.moving(slot, new):
        with pytest.raises(RespError, match=f"ASK {slot} 127.0.0.1:{new.port}"):
            old.command("GET", "{invoice}:43")
        with pytest.raises(RespError, match="TRYAGAIN"):
            old.command("MGET", KEY, "{invoice}:43")
    assert redis_cluster.owner(slot) is new


def test_a_node_that_died_is_back_for_the_next_test(redis_cluster: RedisCluster) -> None:
    """A crash of one node ends with the test."""
    redis_cluster.nodes[1].kill9()
    redis_cluster.reset()
    slot = redis_cluster.slot(KEY)
    assert redis_cluster.owner(slot).command("SET", KEY, "value") == "OK"
