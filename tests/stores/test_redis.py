"""The Redis store on real servers: the contract, other programs on the same key, and what servers do to locks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from dibs.errors import LeaseLost, LossReason, Misuse, StoreUnavailable
from dibs.part import Part
from dibs.ports import redis_dial
from dibs.stores.store import Busy, Claim, Grant
from dibs.testing.contract import StoreContract
from dibs.testing.contract.world import STEP, World
from servers.clock import Clock
from servers.cluster import RedisCluster
from servers.redis import RedisServer
from servers.sentinel import SentinelTrio
from stores.redis_kind import RedisKind, ReplicaKind

KEY = "dibs:{default:%s}"


class TestContract(StoreContract):
    """One server, of each kind."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, redis_or_valkey: RedisServer) -> str:
        return redis_or_valkey.url


class TestContractInACluster(StoreContract):
    """Three masters."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url


class TestContractBehindSentinels(StoreContract):
    """The master that three sentinels name."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture(scope="class")
    @classmethod
    def trio(cls) -> Iterator[SentinelTrio]:
        with SentinelTrio() as trio:
            yield trio

    @pytest.fixture
    def url(self, trio: SentinelTrio) -> str:
        trio.master.reset()
        return trio.url


class TestOtherPrograms(RedisKind):
    """Whoever sets the key in the usual way is kept out, and keeps us out."""

    async def test_a_key_set_by_another_program_is_a_lock_that_is_taken(
        self, world: World, redis_server: RedisServer
    ) -> None:
        redis_server.command("SET", KEY % "a", "theirs", "NX", "PX", 30_000)
        busy = await world.store.grant(world.ask("a"), STEP)
        assert isinstance(busy, Busy)
        assert busy.holder is not None
        assert "another program" in busy.holder.note
        assert 29 < busy.retry_in <= 30
        assert [holder.name for holder in await world.store.holders("", STEP)] == ["a"]
        assert redis_server.command("GET", KEY % "a") == "theirs"

    async def test_their_ttl_frees_the_lock_for_whoever_waits(self, world: World, redis_server: RedisServer) -> None:
        redis_server.command("SET", KEY % "a", "theirs", "NX", "PX", 200)
        began = world.now()
        await world.client().lock("a").acquire(timeout=5)
        assert world.now() - began < 1

    async def test_nobody_else_can_set_the_key_while_we_hold_it(self, world: World, redis_server: RedisServer) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        assert redis_server.command("SET", KEY % "a", "theirs", "NX", "PX", 30_000) is None
        await lease.release()
        assert redis_server.command("SET", KEY % "a", "theirs", "NX", "PX", 30_000) == "OK"

    async def test_the_lock_of_redis_py_and_ours_exclude_each_other(
        self, world: World, redis_server: RedisServer
    ) -> None:
        store = self.open_store(f"{redis_server.url}?key=jobs:%7Bname%7D", "default", world.runtime)
        with redis.Redis(port=redis_server.port) as client:
            theirs = client.lock("jobs:a", timeout=30)
            assert theirs.acquire(blocking=False)
            assert isinstance(await store.grant(world.ask("a"), STEP), Busy)
            theirs.release()
            ask = world.ask("a")
            assert isinstance(await store.grant(ask, STEP), Grant)
            assert not theirs.acquire(blocking=False)
            await store.release("a", ask.token, STEP)
            assert theirs.acquire(blocking=False)
            assert await store.holders("", STEP) == []
        await store.close()

    async def test_a_key_that_never_ends_is_an_error_and_not_an_endless_wait(
        self, world: World, redis_server: RedisServer
    ) -> None:
        redis_server.command("SET", KEY % "a", "theirs")
        with pytest.raises(StoreUnavailable, match="no ttl") as refused:
            await world.client().lock("a").acquire()
        assert KEY % "a" in str(refused.value)
        assert await world.store.holders("", STEP) == []

    async def test_a_key_of_another_kind_is_an_error_and_not_an_endless_wait(
        self, world: World, redis_server: RedisServer
    ) -> None:
        redis_server.command("RPUSH", KEY % "a", "theirs")
        with pytest.raises(StoreUnavailable, match="delete or rename"):
            await world.client().lock("a").acquire()
        assert await world.store.renew([Claim("a", "t", 1, 30.0)], STEP) == [LossReason.TAKEN]
        assert await world.store.holders("", STEP) == []


class TestFences(RedisKind):
    """They rise, whatever the server forgot."""

    async def test_a_fence_follows_the_last_one_when_the_clock_is_behind(
        self, world: World, redis_server: RedisServer
    ) -> None:
        ahead = 2**52
        redis_server.command("SET", KEY % "a" + ":fence", ahead)
        assert (await world.client().lock("a").acquire(timeout=0)).fence == ahead + 1

    async def test_the_highest_fence_is_followed_by_a_refusal(self, world: World, redis_server: RedisServer) -> None:
        redis_server.command("SET", KEY % "a" + ":fence", 2**53 - 2)
        lease = await world.client().lock("a").acquire(timeout=0)
        assert lease.fence == 2**53 - 1
        await lease.release()
        for fence in (2**53 - 1, 2**53, 2**63 - 1, "text"):
            redis_server.command("SET", KEY % "a" + ":fence", fence)
            with pytest.raises(StoreUnavailable, match="no fence can come after"):
                await world.client().lock("a").acquire(timeout=0)
            assert redis_server.command("GET", KEY % "a") is None

    async def test_after_a_flush_the_holder_is_told_and_fences_still_rise(
        self, world: World, redis_server: RedisServer
    ) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        redis_server.command("FLUSHALL")
        later = await world.client().lock("a").acquire(timeout=0)
        assert later.fence > lease.fence
        with pytest.raises(LeaseLost):
            await lease.renew()
        await later.renew()

    async def test_a_late_grant_to_the_same_token_is_not_renewed_by_the_holder_of_the_first(self, world: World) -> None:
        """An ask that was carried out long after the first grant ended: its holder has been told of the loss."""
        ask = world.ask("a")
        first = await world.store.grant(ask, STEP)
        assert isinstance(first, Grant)
        await world.store.release("a", ask.token, STEP)
        late = await world.store.grant(ask, STEP)
        assert isinstance(late, Grant)
        claims = [Claim("a", ask.token, fence, ask.ttl) for fence in (first.fence, late.fence)]
        assert await world.store.renew(claims, STEP) == [LossReason.TAKEN, None]

    async def test_after_a_restart_without_data_fences_still_rise(
        self, world: World, redis_server: RedisServer
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        redis_server.restart(keep_data=False)
        assert (await world.client().lock("a").acquire(timeout=STEP)).fence > lease.fence
        with pytest.raises(LeaseLost):
            await lease.renew()

    async def test_a_fence_has_no_ttl_and_nothing_else_stays(self, world: World, redis_server: RedisServer) -> None:
        held = await world.client().lock("a").acquire(timeout=0)
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(lambda: waits(world, "a"))
        await held.release()
        await (await waiter.result()).release()
        assert redis_server.command("KEYS", "*") == [KEY % "a" + ":fence"]
        assert redis_server.command("PTTL", KEY % "a" + ":fence") == -1


class TestCrowds(RedisKind):
    """Who has just had to wait for a name takes a ticket with the next ask, which spares a request for each turn."""

    async def test_a_name_is_crowded_from_a_refusal_until_a_first_ask_is_granted(self, world: World) -> None:
        store, first, second = world.store, world.ask("a", queue=True), world.ask("a", queue=True)
        assert isinstance(await store.grant(first, STEP), Grant)
        assert not store.crowded("a")
        assert isinstance(await store.grant(second, STEP), Busy)
        assert store.crowded("a")
        await store.release("a", first.token, STEP)
        assert isinstance(await store.grant(second, STEP), Grant)
        assert store.crowded("a")
        await store.release("a", second.token, STEP)
        assert isinstance(await store.grant(world.ask("a", queue=True), STEP), Grant)
        assert not store.crowded("a")


class TestServers(RedisKind):
    """What a server does, and what becomes of the locks."""

    async def test_who_waits_for_many_slots_and_is_gone_keeps_no_free_ones_from_others(self, world: World) -> None:
        slots, gone = world.client().semaphore("a", 3), world.client()
        held = await slots.acquire(timeout=0)
        everything = Part(3, 3).token(world.runtime.token())
        ask = world.ask("a", queue=True)._replace(token=everything)
        await gone.holders()  # from here on its loop is known
        assert isinstance(await world.wire(gone).grant(ask, STEP), Busy)
        assert await world.client().semaphore("a", 3).try_acquire() is None
        await gone.close()
        assert (await world.client().semaphore("a", 3).acquire(timeout=1)).fence > held.fence

    async def test_a_script_flush_between_any_two_steps_is_not_noticed(
        self, world: World, redis_server: RedisServer
    ) -> None:
        def flush() -> None:
            redis_server.command("SCRIPT", "FLUSH", "SYNC")

        client = world.client()
        claims = [await world.crashed(f"{number}", 30) for number in range(250)]  # three scripts in one write
        flush()
        assert await world.store.renew(claims, STEP) == [None] * 250
        flush()
        lease = await client.lock("a").acquire(timeout=0)
        flush()
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(lambda: waits(world, "a"))
        flush()
        assert await client.evict("a", fence=lease.fence)
        flush()
        await (await waiter.result()).release()
        flush()
        assert await world.store.renew([lease.claim], STEP) == [LossReason.EVICTED]

    async def test_a_full_memory_refuses_new_locks_and_keeps_those_that_are_held(
        self, world: World, redis_server: RedisServer
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        redis_server.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="memory is full"):
            await client.lock("b").acquire(timeout=0)
        await lease.renew()
        assert await client.evict("a", fence=lease.fence + 1) is False
        await lease.release()
        assert redis_server.command("EXISTS", KEY % "a") == 0

    async def test_a_policy_that_may_delete_held_locks_is_warned_of_once(
        self, world: World, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_dial, "_warned", set())
        redis_server.config_set("maxmemory-policy", "volatile-ttl")
        for _ in range(2):
            await world.client().lock("a").try_acquire()
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "volatile-ttl" in warnings[0]

    async def test_a_server_that_is_held_up_by_a_script_is_unavailable(
        self, world: World, redis_server: RedisServer
    ) -> None:
        client = world.client()
        await client.lock("a").acquire(timeout=0)
        redis_server.config_set("busy-reply-threshold", "10")
        stuck = world.begin(lambda: keep_busy(redis_server))

        async def is_told() -> bool:
            return "script of somebody else" in str(await problem_of(client, "b"))

        await world.until(is_told, within=5)
        redis_server.command("SCRIPT", "KILL")
        await stuck.result()

    async def test_a_server_with_too_few_replicas_is_unavailable(self, world: World, redis_server: RedisServer) -> None:
        redis_server.config_set("min-replicas-to-write", "1")
        with pytest.raises(StoreUnavailable, match="fewer replicas"):
            await world.client().lock("a").acquire()

    async def test_a_replica_is_no_place_for_locks(
        self, world: World, redis_server: RedisServer, start_redis: Callable[..., RedisServer]
    ) -> None:
        replica = start_redis()
        replica.replicate(redis_server)
        store = self.open_store(replica.url, "default", world.runtime)
        with pytest.raises(StoreUnavailable, match="replica"):
            await store.grant(world.ask("a"), STEP)
        await store.close()


class TestClocks(RedisKind):
    """The server's clock is the only one that counts, and it may be wrong."""

    @pytest.fixture
    def server(self, start_redis: Callable[..., RedisServer], clock: Clock) -> RedisServer:
        return start_redis(clock=clock)

    @pytest.fixture
    def url(self, server: RedisServer) -> str:
        return server.url

    async def test_a_clock_that_jumps_ahead_ends_leases_and_orders_them(self, world: World, clock: Clock) -> None:
        first = await world.client().lock("a", ttl=30).acquire(timeout=0)
        clock.shift(60)
        second = await world.client().lock("a", ttl=30).acquire(timeout=0)
        assert second.fence > first.fence
        with pytest.raises(LeaseLost):
            await first.renew()
        clock.shift(0)

    async def test_a_clock_that_falls_back_neither_lowers_fences_nor_keeps_a_free_lock(
        self, world: World, clock: Clock
    ) -> None:
        first = await world.client().lock("a").acquire(timeout=0)
        asleep = world.ask("a", queue=True)
        assert isinstance(await world.store.grant(asleep, STEP), Busy)
        await first.release()
        clock.shift(-3600)
        second = await world.client().lock("a").acquire(timeout=2)
        assert second.fence > first.fence


class TestRights(RedisKind):
    """Passwords and users."""

    @pytest.fixture
    def server(self, start_redis: Callable[..., RedisServer]) -> RedisServer:
        return start_redis(
            password="s3cret@:%",
            users=[
                "mute on >pw ~* resetchannels +@all -subscribe",
                "deaf on >pw ~* resetchannels +@all",
                "reader on >pw ~* &* +@read +ping",
            ],
        )

    @pytest.fixture
    def url(self, server: RedisServer) -> str:
        return server.url

    async def test_a_password_with_special_characters_works(self, world: World) -> None:
        await (await world.client().lock("a").acquire(timeout=0)).release()

    async def test_the_rights_that_the_docs_name_are_enough(
        self, world: World, server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        page = (Path(__file__).parents[2] / "docs/stores/redis.md").read_text(encoding="utf-8")
        words = next(line for line in page.splitlines() if line.startswith("ACL SETUSER")).split()
        server.command(*words)
        server.command("ACL", "SETUSER", "locks", "+scan")
        store = self.open_store(server.url_for("locks", "secret"), "default", world.runtime)
        first, second = world.ask("a"), world.ask("a", queue=True)
        grant = await store.grant(first, STEP)
        assert isinstance(grant, Grant)
        claim = Claim("a", first.token, grant.fence, 30.0)
        assert isinstance(await store.grant(second, STEP), Busy)
        assert await store.renew([claim], STEP) == [None]
        await store.attach(claim, "note", STEP)
        assert len((await store.show("a", STEP)).waiting) == len(await store.holders("", STEP)) == 1
        assert await store.evict("a", grant.fence, "why", STEP)
        assert await store.renew([claim], STEP) == [LossReason.EVICTED]
        assert isinstance(await store.grant(second, STEP), Grant)
        assert await store.release("a", second.token, STEP) is None
        assert caplog.records == []
        await store.close()

    async def test_a_wrong_or_missing_password_is_said_plainly(self, world: World, server: RedisServer) -> None:
        for url, words in (
            (f"redis://127.0.0.1:{server.port}", "wants a password"),
            (f"redis://:wrong@127.0.0.1:{server.port}", "refuses this user or password"),
            (server.url_for("reader", "pw"), "may not do what locking needs"),
        ):
            store = self.open_store(url, "default", world.runtime)
            with pytest.raises(StoreUnavailable, match=words):
                await store.grant(world.ask("a"), STEP)
            await store.close()

    @pytest.mark.parametrize("user", ["mute", "deaf"])
    async def test_a_user_who_may_not_listen_polls_and_that_is_said_once(
        self, world: World, server: RedisServer, user: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        held = await world.crashed("a", 30)
        store = self.open_store(server.url_for(user, "pw"), "default", world.runtime)
        for _ in range(2):
            ask = world.ask("a", queue=True)
            busy = await store.grant(ask, STEP)
            assert isinstance(busy, Busy)
            began = world.now()
            await store.wait(ask, busy, 5.0)
            assert world.now() - began < 1
        await world.store.release("a", held.token, STEP)
        first = await store.grant(ask, STEP)  # the other ticket is before it, and is not asked for any more
        await world.sleep(0.1)
        assert isinstance(first, Busy)
        assert isinstance(await store.grant(ask, STEP), Grant)
        warnings = [record.getMessage() for record in caplog.records if "subscribe" in record.getMessage()]
        assert len(warnings) == 1
        await store.release("a", ask.token, STEP)
        await store.close()


class TestReplicas(ReplicaKind):
    """`min_replicas` counts who knows the grant."""

    async def test_a_grant_that_a_replica_has_is_a_grant(self, world: World, replica: RedisServer) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        assert replica.command("GET", KEY % "a").startswith(f"dibs:{lease.token}:")

    async def test_a_grant_that_no_replica_confirms_is_given_back(
        self, world: World, replica: RedisServer, redis_server: RedisServer
    ) -> None:
        client = world.client()
        replica.stop()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await client.lock("a", ttl=2).acquire()
        assert redis_server.command("EXISTS", KEY % "a") == 0
        replica.cont()
        await world.until(lambda: free_again(client, "a"))

    async def test_waiting_for_replicas_holds_up_nobody_else(self, world: World, replica: RedisServer) -> None:
        client = world.client()
        held = await client.lock("a").acquire(timeout=0)
        replica.stop()
        stuck = world.begin(lambda: problem_of(client, "b"))
        began = world.now()
        for _ in range(5):
            await held.lost.wait(0.02)
            assert await world.store.renew([held.claim], STEP) == [None]
            await held.renew()
        assert world.now() - began < 1
        assert await stuck.result()

    async def test_a_number_of_replicas_that_is_none_is_misuse(self, world: World, redis_server: RedisServer) -> None:
        with pytest.raises(Misuse):
            self.open_store(f"{redis_server.url}?min_replicas=many", "default", world.runtime)


async def waits(world: World, name: str) -> bool:
    """Whether somebody waits for *name*."""
    return bool((await world.store.show(name, STEP)).waiting)


async def problem_of(client: Any, name: str) -> StoreUnavailable | None:
    """What the store says when *name* is tried."""
    try:
        lease = await client.lock(name, ttl=1).try_acquire()
        if lease is not None:
            await lease.release()
    except StoreUnavailable as error:
        return error
    return None


async def free_again(client: Any, name: str) -> bool:
    """Whether *name* can be had."""
    try:
        return await client.lock(name).try_acquire() is not None
    except StoreUnavailable:
        return False


async def keep_busy(server: RedisServer) -> None:
    """Hold the server up until somebody kills the script."""
    import asyncio  # noqa: PLC0415 - in blocking code this is a thread, in async code it must not block the loop
    import contextlib  # noqa: PLC0415

    def stay() -> None:
        with contextlib.suppress(Exception):
            server.command("EVAL", "while true do end", 0)

    if asyncio._get_running_loop() is None:
        stay()
    else:
        await asyncio.to_thread(stay)
