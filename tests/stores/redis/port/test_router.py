"""Requests that fail on their way, and servers that move: what is certain, what is unknown, and in what time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import LeaseLost, NotAcquired, OutcomeUnknown, StoreUnavailable
from dibs.stores.store import Busy, Grant, PartlyRenewed
from dibs.testing.contract.suite import Fixtures, Kind
from dibs.testing.contract.world import STEP, World
from dibs.testing.proxy import FaultProxy
from servers.cluster import RedisCluster
from servers.node import Node
from servers.redis import RedisServer
from servers.sentinel import SentinelTrio
from tempo import took

CLOSE = 0.05
"""Seconds by which a step may miss its end."""


class BothColours(Kind, Fixtures):
    runtimes = ("threads", "asyncio")


class TestUnknownOutcomes(BothColours):
    """A proxy stands before the server."""

    @pytest.fixture
    def proxy(self, redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy]) -> FaultProxy:
        return fault_proxy(redis_server)

    @pytest.fixture
    def url(self, proxy: FaultProxy) -> str:
        return f"redis://127.0.0.1:{proxy.port}"

    async def test_an_acquire_whose_answer_is_lost_is_one_grant(
        self, world: World, proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        client = world.client()
        await client.lock("warm").try_acquire()
        with proxy.drop_reply(to=b"EVALSHA") as fault:
            lease = await client.lock("a").acquire(timeout=5)
            assert fault.count == 1
        assert redis_server.command("GET", "dibs:{default:a}").startswith(f"dibs:{lease.token}:{lease.fence}:")
        assert redis_server.command("GET", "dibs:{default:a}:fence") == str(lease.fence)
        await lease.release()
        assert redis_server.command("EXISTS", "dibs:{default:a}") == 0

    async def test_an_acquire_that_never_hears_says_unknown_in_time_and_leaves_nothing(
        self, world: World, proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        client = world.client()
        await client.lock("warm").try_acquire()

        async def attempt() -> float:
            began = world.now()
            with proxy.black_hole("replies"), pytest.raises(OutcomeUnknown):
                await client.lock("a").acquire(timeout=0.3)
            return world.now() - began

        await world.measured(attempt, at_least=0.25, at_most=0.3 + CLOSE)
        await world.until(lambda: gone(redis_server, "a"), within=5)

    async def test_a_server_that_accepts_and_never_answers_takes_no_longer_than_the_timeout(
        self, world: World, proxy: FaultProxy
    ) -> None:
        for direction in ("requests", "replies"):

            async def attempt(direction: Any = direction) -> float:
                client = world.client()
                with proxy.black_hole(direction):
                    began = world.now()
                    with pytest.raises(StoreUnavailable):
                        await client.lock("a").acquire(timeout=0.2)
                    return world.now() - began

            await world.measured(attempt, at_least=0.0, at_most=0.2 + CLOSE)

    async def test_a_waiter_that_is_cut_off_ends_at_its_deadline(self, world: World, proxy: FaultProxy) -> None:
        await world.crashed("a", 30)

        async def attempt() -> float:
            client = world.client()
            began = world.now()
            waiter = world.begin(lambda: client.lock("a").acquire(timeout=0.5))
            await world.until(lambda: waits(world, "a"))
            with proxy.black_hole("replies"):
                with pytest.raises((NotAcquired, StoreUnavailable)):
                    await waiter.result()
                return world.now() - began

        await world.measured(attempt, at_least=0.0, at_most=0.5 + CLOSE)

    async def test_a_release_whose_answer_is_lost_is_done(
        self, world: World, proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        client = world.client()
        await (await client.lock("a").acquire(timeout=0)).release()  # the server knows the scripts
        lease = await client.lock("a").acquire(timeout=0)
        with proxy.drop_reply(), pytest.raises(OutcomeUnknown):
            await lease.release()
        assert redis_server.command("EXISTS", "dibs:{default:a}") == 0
        assert not lease.lost
        await lease.release()

    async def test_a_release_that_did_not_arrive_is_made_up_for(
        self, world: World, proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        with proxy.drop("requests"), pytest.raises(OutcomeUnknown):
            await lease.release()
        await world.until(lambda: gone(redis_server, "a"), within=5)

    async def test_the_block_of_a_lock_does_not_fail_because_its_release_was_not_answered(
        self, world: World, proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        client = world.client()
        async with client.lock("a"):
            fault = proxy.drop_reply()
        assert fault.count == 1
        await world.until(lambda: gone(redis_server, "a"), within=5)

    async def test_a_renewal_whose_answer_is_lost_extends_nothing_here_and_is_done_again(
        self, world: World, proxy: FaultProxy
    ) -> None:
        client = world.client()
        lease = await client.lock("a", ttl=5).acquire(timeout=0)
        before = lease.expires_in()
        with proxy.drop_reply(), pytest.raises(OutcomeUnknown):
            await lease.renew()
        assert lease.expires_in() < before
        await lease.renew()
        assert lease.expires_in() > before - 1
        await lease.release()

    async def test_answers_that_come_in_pieces_are_answers(self, world: World, proxy: FaultProxy) -> None:
        ask, other = world.ask("a"), world.ask("a")
        await world.store.grant(ask, STEP)
        for at in (1, 3, 7, 20, 40, 90):
            with proxy.split("replies", at) as fault:
                busy = world.begin(lambda: world.store.grant(other, STEP))
                await world.until(lambda fault=fault: happened(fault))  # type: ignore[misc]
                fault.lift()
                assert isinstance(await busy.result(), Busy)
        assert await world.store.release("a", ask.token, STEP) is None

    async def test_an_idle_connection_that_the_server_closed_is_not_used(
        self, world: World, redis_server: RedisServer, proxy: FaultProxy
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        accepted = proxy.accepted
        for step in (lease.renew, lease.release):
            proxy.cut()
            await world.sleep(0.02)
            await step()
        assert proxy.accepted == accepted + 2

    async def test_a_refused_connection_is_certain_and_at_once(self, world: World, proxy: FaultProxy) -> None:
        client = world.client()
        with proxy.refuse(), took(1):
            with pytest.raises(StoreUnavailable) as refused:
                await client.lock("a").acquire()
            assert type(refused.value) is StoreUnavailable
        await (await client.lock("a").acquire(timeout=0)).release()

    async def test_a_late_request_leaves_no_lock_for_longer_than_its_ttl(
        self, world: World, proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        client = world.client()
        await client.lock("warm").try_acquire()
        with proxy.black_hole("requests"), pytest.raises(OutcomeUnknown):
            await client.lock("a", ttl=1).acquire(timeout=0.1)
        await world.until(lambda: gone(redis_server, "a"), within=3)
        assert (await world.client().lock("a").acquire(timeout=3)).fence


class TestInACluster(BothColours):
    """Slots that move, nodes that die."""

    @pytest.fixture
    def url(self, redis_cluster: RedisCluster) -> str:
        return redis_cluster.url

    async def test_a_lock_is_found_when_its_slot_has_moved(self, world: World, redis_cluster: RedisCluster) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        slot = redis_cluster.slot("dibs:{default:a}")
        redis_cluster.move(slot, redis_cluster.others(slot)[0])
        await lease.renew()
        assert await world.client().lock("a").try_acquire() is None
        await lease.release()
        assert (await client.lock("a").acquire(timeout=0)).fence > lease.fence

    async def test_a_lease_is_renewed_while_its_slot_is_on_its_way(
        self, world: World, redis_cluster: RedisCluster
    ) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        slot = redis_cluster.slot("dibs:{default:a}")
        there = redis_cluster.others(slot)[0]
        with redis_cluster.moving(slot, there):
            await lease.renew()
            redis_cluster.move_keys(slot, there)
            await lease.renew()
            for node in redis_cluster.nodes:
                node.command("SCRIPT", "FLUSH")
            await lease.renew()
        await lease.release()

    async def test_a_lock_is_taken_as_soon_as_its_slot_has_arrived(
        self, world: World, redis_cluster: RedisCluster
    ) -> None:
        client = world.client()
        slot = redis_cluster.slot("dibs:{default:a}")
        with redis_cluster.moving(slot, redis_cluster.others(slot)[0]):
            acquired = world.begin(lambda: client.lock("a").acquire(timeout=5))
            await world.sleep(0.05)
        await (await acquired.result()).release()

    async def test_a_slot_that_stays_on_its_way_is_unavailable_in_time(
        self, world: World, redis_cluster: RedisCluster
    ) -> None:
        client = world.client()
        slot = redis_cluster.slot("dibs:{default:a}")
        with redis_cluster.moving(slot, redis_cluster.others(slot)[0]):
            began = world.now()
            with took(4), pytest.raises(StoreUnavailable, match="moving this lock"):
                await client.lock("a").acquire(timeout=1.0)
            assert world.now() - began > 0.95

    async def test_a_waiter_gets_its_lock_although_the_slot_moved(
        self, world: World, redis_cluster: RedisCluster
    ) -> None:
        lease = await world.client().lock("b").acquire(timeout=0)
        waiter = world.begin(world.client().lock("b").acquire)
        await world.until(lambda: waits(world, "b"))
        slot = redis_cluster.slot("dibs:{default:b}")
        with redis_cluster.moving(slot, to=redis_cluster.others(slot)[0]):
            pass
        await lease.release()
        assert (await waiter.result()).fence > lease.fence

    async def test_a_dead_node_costs_only_the_locks_on_it(self, world: World, redis_cluster: RedisCluster) -> None:
        names = [f"{number}" for number in range(12)]
        claims = [await world.crashed(name, 30) for name in names]
        dead = redis_cluster.nodes[0]
        there = [redis_cluster.owner(redis_cluster.slot(f"dibs:{{default:{name}}}")) is dead for name in names]
        assert 0 < sum(there) < len(names)
        dead.stop()
        try:
            with pytest.raises(PartlyRenewed) as partly:
                await world.store.renew(claims, 1.0)
        finally:
            dead.cont()
        assert [isinstance(answer, StoreUnavailable) for answer in partly.value.answers] == there
        assert {answer for answer, is_there in zip(partly.value.answers, there, strict=True) if not is_there} == {None}


class TestBehindSentinels(BothColours):
    """A master that changes."""

    @pytest.fixture
    def url(self, sentinel: SentinelTrio) -> str:
        return sentinel.url

    async def test_after_a_failover_the_new_master_is_asked_and_fences_rise(
        self, world: World, sentinel: SentinelTrio
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        await world.until(lambda: copied(sentinel, "dibs:{default:a}"))
        old = sentinel.failover()
        assert old is sentinel.master
        with_time = await world.client().lock("b").acquire(timeout=10)
        assert with_time.fence > lease.fence
        await lease.renew()

    async def test_a_lock_that_the_replica_never_saw_has_two_holders_with_rising_fences(
        self, world: World, sentinel: SentinelTrio
    ) -> None:
        old, new = sentinel.master, sentinel.replica
        client = world.client()
        await client.lock("warm").try_acquire()
        new.command("REPLICAOF", "NO", "ONE")  # cut off: what comes now is not copied
        first = await client.lock("a").acquire(timeout=0)
        assert old.command("EXISTS", "dibs:{default:a}") == 1
        assert new.command("EXISTS", "dibs:{default:a}") == 0
        store = self.open_store(new.url, "default", world.runtime)
        second = await store.grant(world.ask("a"), STEP)
        await store.close()
        assert isinstance(second, Grant)
        assert second.fence > first.fence

    async def test_a_dead_master_is_unavailable_until_there_is_another(
        self, world: World, sentinel: SentinelTrio
    ) -> None:
        client = world.client()
        lease = await client.lock("a", ttl=60).acquire(timeout=0)
        old = sentinel.master
        old.kill9()
        with pytest.raises(StoreUnavailable):
            await client.lock("b").acquire(timeout=0.2)
        sentinel.await_failover(old)
        with contextlib.suppress(LeaseLost):
            await lease.renew()
        assert (await client.lock("b").acquire(timeout=5)).fence > lease.fence

    async def test_sentinels_that_know_no_such_service_are_named(self, world: World, sentinel: SentinelTrio) -> None:
        store = self.open_store(sentinel.url.replace("/dibs/", "/other/"), "default", world.runtime)
        with pytest.raises(StoreUnavailable, match="knows no master called 'other'") as refused:
            await store.grant(world.ask("a"), STEP)
        assert len(refused.value.causes) == 3
        await store.close()


async def gone(server: RedisServer, name: str) -> bool:
    """Whether nobody holds *name*."""
    return bool(server.command("EXISTS", f"dibs:{{default:{name}}}") == 0)


async def waits(world: World, name: str) -> bool:
    """Whether somebody waits for *name*."""
    return bool((await world.store.show(name, STEP)).waiting)


async def happened(fault: Any) -> bool:
    """Whether the fault has hit."""
    return bool(fault.count)


async def copied(sentinel: SentinelTrio, key: str) -> bool:
    """Whether the replica knows *key*."""
    return bool(sentinel.replica.command("EXISTS", key) == 1)
