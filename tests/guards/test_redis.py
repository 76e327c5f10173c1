"""A guard in Redis compares and writes in one script, in both colours, on plain servers and on clusters."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis
import redis.asyncio

import dibs
from dibs.errors import Misuse, StaleFence
from dibs.guards import RedisGuard
from dibs.runtime import run
from guards.callers import done
from servers.cluster import RedisCluster
from servers.redis import RedisServer

NAME = "account:42"


def in_each_colour(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Any:
    """The test gets a client of each kind."""

    @pytest.mark.parametrize("decode", [False, True], ids=["bytes", "text"])
    @pytest.mark.parametrize("colour", ["blocking", "async"])
    @functools.wraps(test)
    def run_it(redis_server: RedisServer, colour: str, decode: bool) -> None:
        if colour == "blocking":
            with redis.Redis.from_url(redis_server.url, decode_responses=decode) as client:
                run(test(client))
        else:
            asyncio.run(in_async_code(redis_server.url, decode))

    async def in_async_code(url: str, decode: bool) -> None:
        async with redis.asyncio.Redis.from_url(url, decode_responses=decode) as client:
            await test(client)

    del run_it.__wrapped__  # pytest looks there for the fixtures
    return run_it


async def get(client: Any, key: str) -> str | None:
    found = await done(client.get(key))
    return found.decode() if isinstance(found, bytes) else found


@in_each_colour
async def test_a_stale_write_is_refused_and_changes_nothing(client: Any) -> None:
    guard = RedisGuard()
    await done(guard.claim(client, NAME, 5))
    assert await done(guard.write(client, NAME, 5, ["SET", "balance", 1]))
    assert await done(guard.write(client, NAME, 5, ["INCRBY", "balance", "2"]))
    await done(guard.claim(client, NAME, 10))
    with pytest.raises(StaleFence) as stale:
        await done(guard.write(client, NAME, 9, ["SET", "balance", 9]))
    assert stale.value.current == 10
    for step in (guard.claim, guard.check):
        with pytest.raises(StaleFence):
            await done(step(client, NAME, 9))
    assert await get(client, "balance") == "3"
    await done(guard.check(client, NAME, 10))
    await done(guard.claim(client, "other", 9))


@in_each_colour
async def test_numbered_writes_come_in_order_and_a_repeat_is_recognised(client: Any) -> None:
    guard = RedisGuard()
    add = functools.partial(guard.write, client, NAME, 5, ["INCRBY", "balance", "1"])
    assert await done(add(seq=1, digest="a"))
    assert not await done(add(seq=1, digest="a"))
    with pytest.raises(Misuse, match="another write"):
        await done(add(seq=1, digest="b"))
    assert await done(add(seq=2))
    with pytest.raises(StaleFence, match="same grant"):
        await done(add(seq=1, digest="a"))
    assert await done(add())
    assert await get(client, "balance") == "3"


@in_each_colour
async def test_a_sealed_grant_is_over_and_the_next_is_not(client: Any) -> None:
    guard = RedisGuard()
    assert await done(guard.seal(client, NAME, 5))
    assert not await done(guard.seal(client, NAME, 5))
    for step in (guard.claim, guard.check):
        with pytest.raises(StaleFence):
            await done(step(client, NAME, 5))
    with pytest.raises(StaleFence):
        await done(guard.write(client, NAME, 5, ["SET", "balance", 1]))
    await done(guard.claim(client, NAME, 6))


@in_each_colour
async def test_a_command_that_fails_does_not_count(client: Any) -> None:
    guard = RedisGuard()
    await done(client.set("text", "x"))
    with pytest.raises(redis.ResponseError):
        await done(guard.write(client, NAME, 5, ["INCRBY", "text", "1"], seq=1))
    assert await done(guard.write(client, NAME, 5, ["SET", "text", "1"], seq=1))


@in_each_colour
async def test_fences_up_to_two_to_the_63_are_told_apart(client: Any) -> None:
    guard = RedisGuard()
    await done(guard.claim(client, NAME, 9))
    await done(guard.claim(client, NAME, 2**63 - 2))
    await done(guard.claim(client, NAME, 2**63 - 1))
    with pytest.raises(StaleFence) as stale:
        await done(guard.claim(client, NAME, 2**63 - 2))
    assert stale.value.current == 2**63 - 1


@in_each_colour
async def test_one_shot_and_epochs_are_those_of_tables(client: Any) -> None:
    once, moved = RedisGuard(one_shot=True), RedisGuard(epoch=1)
    assert await done(once.write(client, NAME, 10**15, ["SET", "balance", 1]))
    with pytest.raises(StaleFence):
        await done(once.write(client, NAME, 10**15, ["SET", "balance", 2]))
    await done(moved.claim(client, NAME, 3))
    with pytest.raises(StaleFence):
        await done(once.claim(client, NAME, 10**15 + 1))


@in_each_colour
async def test_what_cannot_be_right_is_refused_before_anything_is_sent(client: Any) -> None:
    guard, wrong = RedisGuard(), list[Any]([True, 1.0, "5", None, 0, -1, 2**63])
    for fence in wrong:
        for step in (guard.claim, guard.check, guard.seal):
            with pytest.raises(Misuse, match="positive whole number"):
                await done(step(client, NAME, fence))
        with pytest.raises(Misuse, match="positive whole number"):
            await done(guard.write(client, NAME, fence, ["SET", "balance", 1]))
    with pytest.raises(Misuse, match="its arguments"):
        await done(guard.write(client, NAME, 5, ["FLUSHALL"]))
    assert await done(client.dbsize()) == 0


@in_each_colour
async def test_a_script_flush_is_not_noticed(client: Any) -> None:
    guard = RedisGuard()
    await done(guard.claim(client, NAME, 5))
    await done(client.script_flush())
    await done(guard.claim(client, NAME, 6))


def test_a_lock_claims_on_acquire(redis_server: RedisServer) -> None:
    guard = RedisGuard()
    with redis.Redis.from_url(redis_server.url) as data, dibs.connect(redis_server.url) as client:
        with client.lock(NAME).guarded(guard.on(data)) as lease:
            guard.write(data, NAME, lease.fence, ["SET", "balance", 1])
            with pytest.raises(StaleFence):
                guard.claim(data, NAME, lease.fence - 1)
        with pytest.raises(StaleFence, match="same grant"):
            guard.write(data, NAME, lease.fence, ["SET", "balance", 2])


def test_on_a_cluster_the_guard_stands_in_the_slot_of_the_data(redis_cluster: RedisCluster) -> None:
    guard = RedisGuard(key=lambda name: "guard:{" + name + "}")
    host, port = redis_cluster.nodes[0].address
    with redis.RedisCluster(host=host, port=port) as client:
        assert guard.write(client, NAME, 5, ["SET", "balance:{account:42}", 1])
        with pytest.raises(StaleFence):
            guard.write(client, NAME, 4, ["SET", "balance:{account:42}", 2])
        assert client.get("balance:{account:42}") == b"1"


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(Misuse, match="no client of redis-py"):
        RedisGuard().claim("redis://", NAME, 5)  # type: ignore[call-overload]
