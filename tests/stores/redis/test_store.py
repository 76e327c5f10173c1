"""The Redis store on real servers: the contract, other programs on the same key, and what servers do to locks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from dibs.errors import LeaseLost, LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.share import Share
from dibs.stores.redis import rights
from dibs.stores.redis.port import dial
from dibs.stores.redis.scripts import EVICTED_KEPT
from dibs.stores.redis.store import RedisStore
from dibs.stores.store import Ask, Busy, Claim, Grant, Store
from dibs.testing.contract import StoreContract
from dibs.testing.contract.world import STEP, World
from servers.clock import Clock
from servers.cluster import RedisCluster
from servers.redis import RedisServer
from servers.sentinel import SentinelTrio
from stores.redis.kind import RedisKind, ReplicaKind
from stores.redis.users import allowed, as_user
from tempo import took

KEY = "dibs:{default:%s}"


class TestContract(StoreContract):
    """One server, of each kind, as a user with only the rights that the docs name."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, redis_or_valkey: RedisServer) -> Iterator[str]:
        with allowed([redis_or_valkey], rights.redis()):
            yield as_user(redis_or_valkey.url)


class TestContractInACluster(StoreContract):
    """Three masters, as a user with these rights."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> Iterator[str]:
        with allowed(redis_cluster.nodes, f"{rights.redis()} {rights.cluster()}"):
            yield as_user(redis_cluster.url)


class TestContractBehindSentinels(StoreContract):
    """The master that three sentinels name, as a user whom only the servers know."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture(scope="class")
    @classmethod
    def trio(cls) -> Iterator[SentinelTrio]:
        with SentinelTrio() as trio:
            yield trio

    @pytest.fixture
    def url(self, trio: SentinelTrio) -> Iterator[str]:
        trio.master.reset()
        with allowed([trio.master], rights.redis()):
            yield as_user(trio.url)


class TestOtherPrograms(RedisKind):
    """A program that sets the key in the usual way is kept out, and keeps us out."""

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

    async def test_their_ttl_frees_the_lock_for_a_waiter(self, world: World, redis_server: RedisServer) -> None:
        redis_server.command("SET", KEY % "a", "theirs", "NX", "PX", 200)
        with took(1):
            await world.client().lock("a").acquire(timeout=5)

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

    async def test_what_never_ends_or_cannot_be_read_is_listed_as_what_it_is_and_harms_no_other_name(
        self, world: World, redis_server: RedisServer
    ) -> None:
        shared = [await world.crashed(name, 30, Share(1, 2)) for name in ("part", "wrong kind of parts")]
        ours = [await world.crashed(name, 30) for name in ("late", "junk", "other")]
        stuck = await world.crashed("stuck", 30)
        redis_server.command("PERSIST", KEY % "stuck")
        redis_server.command("SET", KEY % "foreign", "theirs")
        redis_server.command("RPUSH", KEY % "list", "theirs")
        redis_server.command("SET", KEY % "late", f"dibs:{ours[0].token}:7:99999999999999999999:h:1:u:n", "PX", 30_000)
        redis_server.command("HSET", KEY % "part" + ":parts", "theirs", "junk", shared[0].token, "junk")
        redis_server.command("SET", KEY % "wrong%20kind%20of%20parts" + ":ends", "theirs")
        redis_server.command("SET", KEY % "junk" + ":evicted", "a:b:c:d:e")
        redis_server.command("SET", KEY % "junk" + ":fence", "junk")
        found = {holder.name: holder for holder in await world.store.holders("", STEP)}
        names = {"foreign", "junk", "late", "list", "other", "part", "stuck", "wrong kind of parts"}
        assert found.keys() == names
        for name, remedy in (("stuck", "dibs evict"), ("foreign", f"delete the key {KEY % 'foreign'!r}")):
            shown = (await world.store.show(name, STEP)).holder
            assert shown is not None
            for holder in (shown, found[name]):
                assert holder.expires_in is None
                assert "nothing ends it" in holder.note
                assert remedy in holder.note
        assert "another kind" in found["list"].note
        assert found["other"].fence == ours[2].fence
        assert all(map(str, found.values()))
        assert (await world.store.show("junk", STEP)).fence == 0
        assert await world.store.evict("stuck", stuck.fence, "nobody holds it", STEP)
        assert isinstance(await world.store.grant(world.ask("stuck"), STEP), Grant)

    async def test_a_key_that_lost_its_ttl_gets_one_again_from_a_holder_that_lives(
        self, world: World, redis_server: RedisServer
    ) -> None:
        for share in (None, Share(1, 2)):
            name = "a" if share is None else "b"
            claim = await world.crashed(name, 30, share)
            redis_server.command("PERSIST", KEY % name)
            assert await world.store.renew([claim], STEP) == [None]
            assert redis_server.command("PTTL", KEY % name) > 0

    async def test_a_key_of_another_kind_is_an_error_and_not_an_endless_wait(
        self, world: World, redis_server: RedisServer
    ) -> None:
        redis_server.command("RPUSH", KEY % "a", "theirs")
        with pytest.raises(StoreUnavailable, match="delete or rename") as refused:
            await world.client().lock("a").acquire()
        assert f"{KEY % 'a'!r} (string)" in str(refused.value)
        assert await world.store.renew([Claim("a", "t", 1, 30.0)], STEP) == [LossReason.TAKEN]


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

    async def test_what_came_too_late_for_a_name_that_is_always_in_use_is_forgotten_in_time(
        self, world: World, redis_server: RedisServer
    ) -> None:
        store, tickets = self.open_store(redis_server.url, "default", world.runtime), KEY % "a" + ":tickets"
        assert isinstance(store, RedisStore)
        asks = [world.ask("a") for _ in range(3)]
        for ask in asks:
            with pytest.raises(OutcomeUnknown):
                await store._doubts.of(ask.token, unanswered())
        await store.release("a", asks[0].token, STEP)
        await store.release("a", asks[1].token, STEP)
        redis_server.command("HSET", tickets, "!" + asks[0].token, "1", "!!", "1")  # three minutes later
        await store.release("a", asks[2].token, STEP)
        left = redis_server.command("HGETALL", tickets)[::2]
        assert sorted(left) == sorted(["!", "!!", "@", *("!" + ask.token for ask in asks[1:])])
        await store.close()


async def unanswered() -> None:
    raise OutcomeUnknown("redis", "silence")


class TestCrowds(RedisKind):
    """A client that has just had to wait for a name takes a ticket with its next ask, which spares a request."""

    async def test_a_name_is_crowded_from_a_refusal_until_a_first_ask_is_granted(self, world: World) -> None:
        store, first, second = world.store, world.ask("a", queue=True), world.ask("a", queue=True)
        assert isinstance(await store.grant(first, STEP), Grant)
        assert not store.queue_at_once("a")
        assert isinstance(await store.grant(second, STEP), Busy)
        assert store.queue_at_once("a")
        await store.release("a", first.token, STEP)
        assert isinstance(await store.grant(second, STEP), Grant)
        assert store.queue_at_once("a")
        await store.release("a", second.token, STEP)
        assert isinstance(await store.grant(world.ask("a", queue=True), STEP), Grant)
        assert not store.queue_at_once("a")


class TestServers(RedisKind):
    """What a server does, and what becomes of the locks."""

    async def test_a_dead_waiter_for_many_slots_keeps_no_free_ones_from_others(self, world: World) -> None:
        slots, gone = world.client().semaphore("a", 3), world.client()
        held = await slots.acquire(timeout=0)
        everything = Share(3, 3).token(world.runtime.token())
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
        assert await world.store.renew([lease._claim], STEP) == [LossReason.EVICTED]

    @pytest.mark.parametrize("share", [None, Share(1, 2)], ids=["all", "a part"])
    async def test_the_request_that_finds_a_loss_says_why_and_no_second_one_has_to_come_through(
        self, world: World, redis_server: RedisServer, share: Share | None
    ) -> None:
        broken, gone = [await world.crashed(name, 30, share) for name in ("a", "b")]
        assert await world.store.evict("a", broken.fence, "why", STEP)
        await world.store.release("b", gone.token, STEP)
        await world.store.renew([broken], STEP)  # from here on the server knows the script
        redis_server.command("CONFIG", "RESETSTAT")
        assert await world.store.renew([broken], STEP) == [LossReason.EVICTED]
        assert await world.store.renew([gone], STEP) == [LossReason.TAKEN]
        assert scripts_run(redis_server) == 2

    async def test_the_last_of_many_that_were_broken_are_known(self, world: World, redis_server: RedisServer) -> None:
        """Of all of them only the last one was, so the holder before was told that its lock was taken."""
        claims = list[Claim]()
        for _ in range(EVICTED_KEPT + 1):
            claims.append(await world.crashed("a", 30))
            assert await world.store.evict("a", claims[-1].fence, "why", STEP)
        assert await world.store.renew(claims, STEP) == [LossReason.TAKEN] + [LossReason.EVICTED] * EVICTED_KEPT
        redis_server.command("DEL", KEY % "a" + ":evicted")
        redis_server.command("RPUSH", KEY % "a" + ":evicted", "theirs")
        assert await world.store.renew(claims[:1], STEP) == [LossReason.TAKEN]
        assert await world.store.release("a", claims[0].token, STEP) is LossReason.TAKEN

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
        monkeypatch.setattr(dial, "_warned", set())
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
            return "script of another program" in str(await problem_of(client, "b"))

        await world.until(is_told, within=5)
        redis_server.command("SCRIPT", "KILL")
        await stuck.result()

    async def test_a_server_with_too_few_replicas_is_unavailable(self, world: World, redis_server: RedisServer) -> None:
        redis_server.config_set("min-replicas-to-write", "1")
        with pytest.raises(StoreUnavailable, match="fewer replicas"):
            await world.client().lock("a").acquire()

    @pytest.mark.parametrize("command", ["EVALSHA", "SET", "PEXPIRE", "PUBLISH", "INFO"])
    async def test_a_command_that_was_renamed_is_told_or_done_without(
        self, world: World, start_redis: Callable[..., RedisServer], command: str
    ) -> None:
        server = start_redis(config=[f'rename-command {command} ""'])
        store = self.open_store(server.url, "default", world.runtime)
        problem = await problem_of_asking(store, world.ask("a", share=Share(1, 2)))
        if command in {"PUBLISH", "INFO"}:
            assert problem is None
        else:
            assert problem is not None
            assert "unknown command" in problem or "renamed it" in problem
            assert server.command("KEYS", "*") == []
        await store.close()

    async def test_a_server_that_closes_what_is_idle_is_not_noticed(
        self, world: World, redis_server: RedisServer
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        for kind in ("normal", "pubsub"):
            redis_server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        await world.sleep(0.05)
        await lease.renew()
        await lease.release()

    async def test_a_release_calls_the_first_two_living_waiters_and_drops_the_dead_before_them(
        self, world: World, redis_server: RedisServer
    ) -> None:
        held, line, tickets = await world.crashed("a", 30), KEY % "a" + ":line", KEY % "a" + ":tickets"
        soon, past = int(await world.records.time("a", STEP) + 60) * 1_000_000, 1
        waiting = {"void": past, "gone": soon, "first": soon, "hung_up": soon, "second": soon, "third": soon}
        with redis.Redis(port=redis_server.port) as raw, raw.pubsub(ignore_subscribe_messages=True) as heard:
            heard.subscribe("void", "first", "second", "third")
            assert [heard.get_message(timeout=STEP) for _ in range(4)] == [None] * 4  # subscribed
            for place, (token, until) in enumerate(waiting.items()):
                raw.zadd(line, {token: place})
                raw.hset(tickets, token, f"{until} {token} host:1:user:note")
            assert await world.store.release("a", held.token, STEP) is None
            said = [heard.get_message(timeout=STEP) for _ in range(2)]
            assert [message["data"] for message in said if message] == [b"now first", b"soon second"]
            assert raw.zrange(line, 0, -1) == [b"first", b"second", b"third"]

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

    @pytest.mark.parametrize("share", [None, Share(1, 3)], ids=["lock", "semaphore"])
    async def test_a_renewal_corrects_the_end_that_a_clock_which_fell_back_has_made_of_it(
        self, world: World, clock: Clock, share: Share | None
    ) -> None:
        held = await world.crashed("a", 5, share)
        clock.shift(-3600)
        assert await left(world) > 3000
        assert await world.store.renew([held._replace(longest=7)], STEP) == [None]
        assert await left(world) <= 7
        assert await world.store.renew([held._replace(ttl=1, longest=7)], STEP) == [None]
        assert await left(world) > 1
        clock.shift(0)


async def left(world: World) -> float:
    """Seconds after which the lock ends, as the server says."""
    holder = (await world.store.show("a", STEP)).holder
    assert holder is not None
    assert holder.expires_in is not None
    return holder.expires_in


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

    async def test_a_command_that_is_missing_is_told_and_leaves_no_key_without_an_end(
        self, world: World, server: RedisServer
    ) -> None:
        for command in rights.redis().partition(" +")[2].split(" +"):
            server.command("FLUSHALL")
            server.command("ACL", "SETUSER", "locks", *f"reset on >pw {rights.redis()} -{command}".split())
            store = self.open_store(server.url_for("locks", "pw"), "default", world.runtime)
            held = await world.crashed("held", 30)
            for name in ("held", "a", "b"):
                for share in (None, Share(1, 2), Share(2, 2)):
                    problem = await problem_of_asking(store, world.ask(name, queue=True, share=share))
                    assert problem is None or problem.startswith("this user may not do all that dibs needs"), command
            await world.store.release("held", held.token, STEP)
            await store.close()
            keys = [key for key in server.command("KEYS", "*") if server.command("PTTL", key) == -1]
            assert [key for key in keys if not key.endswith(":fence")] == [], command

    async def test_a_wrong_or_missing_password_is_said_plainly(self, world: World, server: RedisServer) -> None:
        for url, words in (
            (f"redis://127.0.0.1:{server.port}", "wants a password"),
            (f"redis://:wrong@127.0.0.1:{server.port}", "refuses this user or password"),
            (server.url_for("reader", "pw"), "may not do all that dibs needs"),
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
            with took(1):
                await store.wait(ask, busy, 5.0)
        await world.store.release("a", held.token, STEP)
        first = await store.grant(ask, STEP)  # the other ticket is before it, and is no longer asked for
        await world.sleep(0.1)
        assert isinstance(first, Busy)
        assert isinstance(await store.grant(ask, STEP), Grant)
        warnings = [record.getMessage() for record in caplog.records if "subscribe" in record.getMessage()]
        assert len(warnings) == 1
        await store.release("a", ask.token, STEP)
        await store.close()


class TestReplicas(ReplicaKind):
    """`min_replicas` counts the replicas that have the grant."""

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
        with took(1):
            for _ in range(5):
                await held.lost.wait(0.02)
                assert await world.store.renew([held._claim], STEP) == [None]
                await held.renew()
        assert await stuck.result()

    async def test_a_number_of_replicas_that_is_none_is_misuse(self, world: World, redis_server: RedisServer) -> None:
        with pytest.raises(Misuse):
            self.open_store(f"{redis_server.url}?min_replicas=many", "default", world.runtime)


async def problem_of_asking(store: Store, ask: Ask) -> str | None:
    """Why *ask* certainly had no answer of the store."""
    try:
        await store.grant(ask, STEP)
    except Misuse:
        return None  # others hold the name in slots of another number
    except OutcomeUnknown as problem:
        return f"unknown: {problem.problem}"
    except StoreUnavailable as problem:
        return problem.problem.partition(" (")[0]
    return None


def scripts_run(server: RedisServer) -> int:
    """How many scripts the server has run since its statistics were set back, by what it says of each command."""
    said = str(server.command("INFO", "commandstats"))
    return sum(int(calls) for calls in re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", said))


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
