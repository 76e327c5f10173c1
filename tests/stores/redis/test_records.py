"""Records in Redis: one key more in the slot of the lock, which the server forgets; and what a name leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import OutcomeUnknown
from dibs.holder import Record
from dibs.stores.record_store import record_store
from dibs.stores.redis.records import FENCE_MS
from dibs.stores.store import Claim, Grant
from dibs.testing.contract.records import KEEP, begun, finished
from dibs.testing.contract.world import STEP, World
from servers.redis import RedisServer
from stores.redis.kind import RedisKind, ReplicaKind

KEY = "dibs:{default:a}"


class TestRecords(RedisKind):
    async def test_a_name_that_only_keeps_records_leaves_nothing_for_ever(
        self, world: World, redis_server: RedisServer
    ) -> None:
        """Or one key for each request ever made would fill the memory: the clock passes the fence by then."""
        for keep, least in ((KEEP, FENCE_MS), (2 * FENCE_MS / 1000, 2 * FENCE_MS)):
            held = await begun(world, "a", after=await fence(world))
            assert FENCE_MS <= redis_server.command("PTTL", f"{KEY}:fence") <= FENCE_MS + 30_000
            assert await world.records.finish(held, b"done", keep, STEP) is None
            assert least - 5000 < redis_server.command("PTTL", f"{KEY}:fence") <= least
        assert all(redis_server.command("PTTL", key) > 0 for key in redis_server.command("KEYS", "*"))

    async def test_the_fence_of_a_name_that_is_also_locked_has_no_end(
        self, world: World, redis_server: RedisServer
    ) -> None:
        locked = await world.client().lock("a").acquire(timeout=0)
        await locked.release()
        held = await finished(world, "a")
        assert held.fence > locked.fence
        assert redis_server.command("PTTL", f"{KEY}:fence") == -1
        await begun(world, "b")
        await world.store.grant(world.ask("c"), STEP)
        assert redis_server.command("PTTL", "dibs:{default:c}:fence") == -1

    async def test_a_fence_that_is_ahead_of_the_clock_is_not_lost(
        self, world: World, redis_server: RedisServer
    ) -> None:
        first = await finished(world, "a")
        redis_server.command("SET", f"{KEY}:fence", first.fence + 10**12, "KEEPTTL")
        assert (await begun(world, "a", after=first.fence)).fence == first.fence + 10**12 + 1

    async def test_a_record_of_another_program_is_none_of_ours(self, world: World, redis_server: RedisServer) -> None:
        await finished(world, "a")
        redis_server.command("SET", "dibs:{default:b}:record", "theirs", "PX", 60_000)
        assert [record.name for record in await world.records.records("", 9, STEP)] == ["a"]
        assert await world.records.record("b", STEP) is None
        await begun(world, "b")

    async def test_records_under_the_keys_of_another_program_are_found(
        self, world: World, redis_server: RedisServer
    ) -> None:
        """Wherever the slot of a key sends them."""
        store = record_store(self.open_store(f"{redis_server.url}?key=%7D%7Bname%7D", "default", world.runtime))
        for name in ("a", "}b", "{c"):
            ask = world.ask(name)
            answer = await store.grant_unless_recorded(ask, 0, STEP)
            assert isinstance(answer, Grant)
            assert await store.finish(Claim(name, ask.token, answer.fence, 30), b"done", KEEP, STEP) is None
            assert isinstance(await store.grant_unless_recorded(world.ask(name), 0, STEP), Record)
        assert {record.name for record in await store.records("", 9, STEP)} == {"a", "}b", "{c"}
        assert [record.name for record in await store.records("}", 9, STEP)] == ["}b"]
        assert await store.holders("", STEP) == []
        await store.close()

    async def test_one_round_trip_begins_and_one_ends(self, world: World, redis_server: RedisServer) -> None:
        await finished(world, "warm")
        before = calls(redis_server)
        await finished(world, "a")
        assert calls(redis_server) - before == 2
        await world.records.grant_unless_recorded(world.ask("a"), 0, STEP)
        assert calls(redis_server) - before == 3

    async def test_a_server_without_its_scripts_is_given_them(self, world: World, redis_server: RedisServer) -> None:
        for _ in range(2):
            redis_server.command("SCRIPT", "FLUSH")
            held = await begun(world, world.name())
            redis_server.command("SCRIPT", "FLUSH")
            assert await world.records.finish(held, b"done", KEEP, STEP) is None


class TestReplicas(ReplicaKind):
    """`min_replicas` counts the replicas that have the record."""

    async def test_a_record_is_on_its_replicas_when_it_is_written(self, world: World, replica: RedisServer) -> None:
        held = await finished(world, "a")
        assert replica.command("GET", f"{KEY}:record").startswith(f"{held.fence}:{held.token}:")
        assert await world.records.finish(held, b"more", KEEP, STEP) is not None

    async def test_a_record_that_no_replica_confirms_is_unknown_until_one_does(
        self, world: World, replica: RedisServer
    ) -> None:
        held = await begun(world, "a")
        replica.stop()
        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas confirmed the record"):
            await world.records.finish(held, b"done", KEEP, 0.4)
        replica.cont()
        assert await world.records.finish(held, b"done", KEEP, STEP) is None


async def fence(world: World) -> int:
    record = await world.records.record("a", STEP)
    return record.fence if record is not None else 0


def calls(server: RedisServer) -> int:
    stats: Any = server.info("commandstats")
    return int(stats["cmdstat_evalsha"].partition("calls=")[2].partition(",")[0])
