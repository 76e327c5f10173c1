"""What a broken network, a dead server and a lost answer do to locks in ZooKeeper."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

import dibs
import dibs.aio
from dibs.core.lease import Lease
from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.share import SHARED, Share
from dibs.stores.store import Ask, Busy, Grant
from dibs.stores.zookeeper import attendance as zookeeper_attendance
from dibs.stores.zookeeper.paths import guid, queue_order
from dibs.stores.zookeeper.store import ZooKeeperStore
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.stores.zookeeper.watch import ABSENT
from dibs.testing.contract.fences import Fences
from dibs.testing.contract.looking import Looking
from dibs.testing.contract.suite import Fixtures, Kind
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.world import STEP, World
from dibs.testing.proxy import FaultProxy
from dibs.testing.proxy.faults import End
from servers.process import until
from servers.zookeeper import HOST, Ensemble, ZooKeeperServer

CHROOTS = itertools.count(1)

SHORT = 2.0
"""A ttl that a test waits out, with half of it for a request on a busy machine; its session has 2.67 s."""

PATIENCE = 20.0


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer, fault_proxy: Callable[[ZooKeeperServer], FaultProxy]) -> FaultProxy:
    return fault_proxy(zookeeper)


@pytest.fixture
def chroot() -> str:
    return f"/failures/{next(CHROOTS)}"


@pytest.fixture
def url(proxy: FaultProxy, chroot: str) -> str:
    """A URL that leads through the proxy."""
    return f"zookeeper://{HOST}:{proxy.port}{chroot}"


@pytest.fixture
def direct(zookeeper: ZooKeeperServer, chroot: str) -> str:
    """A URL that leads past the proxy."""
    return zookeeper.url + chroot


@pytest.fixture
def raw(zookeeper: ZooKeeperServer, chroot: str) -> Iterator[KazooClient]:
    client = KazooClient(f"{HOST}:{zookeeper.port}")
    client.start()
    client.ensure_path(chroot)
    client.chroot = chroot
    yield client
    client.stop()
    client.close()


class TestLostAnswers(Kind, Fixtures):
    """Tests through a proxy, in blocking and async code."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, proxy: FaultProxy, chroot: str) -> str:
        return f"zookeeper://{HOST}:{proxy.port}{chroot}"

    async def test_a_node_whose_creation_was_not_answered_is_found_again(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        ask = await ask_for_what_was_locked_before(world)
        fault = proxy.drop_reply(to=guid(ask.token).encode())
        with pytest.raises(OutcomeUnknown):
            await world.store.grant(ask, STEP)
        assert fault.count == 1
        again = await world.store.grant(ask, STEP)
        assert isinstance(again, Grant)
        [node] = raw.get_children("/default/a")
        assert raw.get(f"/default/a/{node}")[1].czxid == again.fence

    async def test_the_same_happens_inside_one_acquire(self, world: World, proxy: FaultProxy, raw: KazooClient) -> None:
        client = world.client()
        await ask_for_what_was_locked_before(world)
        proxy.drop_reply(to=b'{"host"')
        lease = await client.lock("a").acquire(timeout=STEP)
        assert len(raw.get_children("/default/a")) == 1
        await lease.release()
        assert raw.get_children("/default/a") == []

    async def test_a_node_whose_creation_was_not_answered_and_that_nobody_wants_is_deleted(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        ask = await ask_for_what_was_locked_before(world)
        proxy.drop_reply(to=guid(ask.token).encode())
        with pytest.raises(OutcomeUnknown):
            await world.store.grant(ask, STEP)
        await world.store.release("a", ask.token, STEP)
        assert raw.get_children("/default/a") == []

    async def test_a_failed_try_leaves_no_node_although_the_connection_broke_before_it_was_deleted(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        held, ask = await world.crashed("a", 30), world.ask("a")
        own = guid(ask.token).encode() + b"-0"  # as it is called once it is there
        fault = proxy.drop("requests", own)
        assert isinstance(await world.store.grant(ask, STEP), Busy)
        assert fault.count == 1
        await world.until(functools.partial(has_children, raw, 1))
        assert raw.get_children("/default/a")[0].startswith(guid(held.token))

    async def test_a_release_that_was_not_answered_is_done_once(self, world: World, proxy: FaultProxy) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        fault = proxy.drop_reply(to=guid(lease.token).encode())
        await lease.release()
        assert fault.count == 1
        assert not lease.lost
        theirs = await world.client().lock("a").acquire(timeout=STEP)
        await lease.release()
        await theirs.renew()

    async def test_a_release_of_a_share_that_was_not_answered_is_done_once(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        leases = [await world.client().lock("a", shared=True).acquire(timeout=0) for _ in range(2)]
        fault = proxy.drop_reply(to=guid(leases[0].token).encode())
        await leases[0].release()
        assert fault.count == 1
        assert not leases[0].lost
        assert int(raw.get("/default/a")[0]) == leases[0].fence
        assert len(raw.get_children("/default/a")) == 1
        await leases[1].renew()

    async def test_a_share_is_released_although_the_last_fence_cannot_be_read(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        held = await world.crashed("a", 30, SHARED)
        fault = proxy.drop_reply(to=b"/default/a")
        assert await world.store.release("a", held.token, STEP) is None
        assert fault.count == 1
        assert raw.get_children("/default/a") == []

    async def test_a_renewal_that_was_not_answered_proves_nothing_and_loses_nothing(
        self, world: World, proxy: FaultProxy
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        deadline = lease.lost._deadline
        proxy.drop_reply(to=guid(lease.token).encode())
        with pytest.raises(StoreUnavailable):
            await lease.renew()
        assert lease.lost._deadline == deadline
        await lease.renew()
        assert lease.lost._deadline > deadline

    async def test_a_connection_that_breaks_is_no_loss(self, world: World, proxy: FaultProxy) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        ends: tuple[End, ...] = ("fin", "rst")
        for end in ends:
            proxy.cut(end)
            await world.until(functools.partial(renews, lease))
        lease.check()

    async def test_a_silent_server_costs_no_more_than_the_budget(self, world: World, proxy: FaultProxy) -> None:
        client = world.client()
        await client.lock("b").acquire(timeout=0)

        async def attempt() -> float:
            began = world.now()
            with proxy.black_hole("replies"), pytest.raises((StoreUnavailable, dibs.NotAcquired)):
                await client.lock("a").acquire(timeout=0.3)
            return world.now() - began

        await world.measured(attempt, at_least=0.2, at_most=0.36)

    async def test_a_waiter_goes_on_waiting_when_its_connection_breaks(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        held = await world.crashed("a", 30)
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(functools.partial(somebody_waits, world))
        proxy.cut()
        await world.store.release("a", held.token, STEP)
        assert (await waiter.result()).fence > held.fence
        assert len(raw.get_children("/default/a")) == 1

    async def test_a_waiter_for_a_slot_goes_on_waiting_when_its_connection_breaks(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        """The first waiter watches the list, and the second is told by the first."""
        held = [await world.crashed("a", 30, Share(1, 2)) for _ in range(2)]
        waiters = []
        for count in (1, 2):
            waiters.append(world.begin(world.client().semaphore("a", 2).acquire))
            await world.until(functools.partial(waiters_are, world, "a", count))
        proxy.cut()
        for claim in held:
            await world.store.release("a", claim.token, STEP)
        fences = [(await waiter.result()).fence for waiter in waiters]
        assert held[1].fence < fences[0] < fences[1]
        assert len(raw.get_children("/default/a")) == 2

    async def test_a_waiter_keeps_its_ticket_through_an_outage(
        self, world: World, proxy: FaultProxy, raw: KazooClient
    ) -> None:
        """The outage is longer than a waiter may be absent, but its session lives on."""
        await world.crashed("a", 30)
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(functools.partial(somebody_waits, world))
        first, second = (f"/default/a/{name}" for name in queue_order(raw.get_children("/default/a")))
        with proxy.refuse():
            proxy.cut()
            await world.sleep(1.5 * ABSENT)
        ticket = raw.get(second)[1].czxid
        raw.delete(first)
        assert (await waiter.result()).fence == ticket

    async def test_a_process_that_stood_still_goes_on_with_the_place_it_has(
        self, world: World, raw: KazooClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its waiter is about to look again: if the watch ended its ticket now, it could leave a second node behind."""
        monkeypatch.setattr(zookeeper_attendance, "OVERDUE", PATIENCE)
        await world.crashed("a", 30)
        ask = world.ask("a", queue=True)
        busy = await world.store.grant(ask, STEP)
        assert isinstance(busy, Busy)
        store = world.store
        assert isinstance(store, ZooKeeperStore)
        ticket = store._tickets.all[ask.token]
        waiter = world.begin(functools.partial(world.store.wait, ask, busy, PATIENCE))
        await world.until(functools.partial(is_attended, ticket))
        ticket.attendance.until = ticket.attendance.seen_at = store._runtime.now() - 2 * ABSENT
        await store._watch._look_at(ticket)
        assert len(raw.get_children("/default/a")) == 2
        ticket.session.ended.add(ticket.owner)
        await store._watch._look_at(ticket)
        await waiter.result()
        assert store._tickets.all[ask.token] is ticket


async def ask_for_what_was_locked_before(world: World) -> Ask:
    """An ask whose parent nodes are there, so that the first request creates its node."""
    held = await world.crashed("a", 30)
    await world.store.release("a", held.token, STEP)
    return world.ask("a")


async def somebody_waits(world: World) -> bool:
    """Whether a client has begun to wait for a lock."""
    return world.asks("wait") > 0


async def is_attended(ticket: ZooKeeperTicket) -> bool:
    return ticket.attendance.until > 0


async def has_children(raw: KazooClient, count: int) -> bool:
    return len(raw.get_children("/default/a")) == count


async def renews(lease: Lease) -> bool:
    try:
        await lease.renew()
    except StoreUnavailable:
        return False
    return True


def test_a_holder_that_is_cut_off_is_told_before_another_is_granted(url: str, direct: str, proxy: FaultProxy) -> None:
    with dibs.connect(url) as ours, dibs.connect(direct) as theirs:
        lease = ours.lock("a", ttl=SHORT).acquire()
        granted_at: list[float] = []

        def take() -> None:
            theirs.lock("a").acquire()
            granted_at.append(time.monotonic())

        thread = threading.Thread(target=take)
        thread.start()
        until(lambda: len(theirs.show("a").waiting) == 1, "the other waits")
        with proxy.black_hole("requests"), proxy.black_hole("replies"):
            assert lease.lost.wait(PATIENCE)
            told_at = time.monotonic()
            assert lease.lost_reason is LossReason.EXPIRED
            thread.join(PATIENCE)
        assert granted_at
        assert told_at < granted_at[0]


def test_the_same_in_async_code_where_the_body_is_cancelled(url: str, direct: str, proxy: FaultProxy) -> None:
    async def main() -> None:
        async with dibs.aio.connect(url) as ours, dibs.aio.connect(direct) as theirs:
            waiter = None
            with proxy.black_hole("requests") as hole, pytest.raises(dibs.LeaseLost):
                hole.lift()
                async with ours.lock("a", ttl=SHORT):
                    waiter = asyncio.ensure_future(theirs.lock("a").acquire())
                    with proxy.black_hole("requests"), proxy.black_hole("replies"):
                        try:
                            await asyncio.sleep(PATIENCE)
                        finally:
                            assert not waiter.done()
            assert waiter is not None
            await asyncio.wait_for(waiter, PATIENCE)

    asyncio.run(main())


class TestEnsembleContract(Fences, Looking, Fixtures):
    """Parts of the contract, on three servers."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, ensemble: Ensemble, chroot: str) -> str:
        return ensemble.url + chroot


class TestEnsemble:
    def test_a_lock_outlives_the_leader(self, ensemble: Ensemble, chroot: str) -> None:
        with dibs.connect(ensemble.url + chroot) as ours, dibs.connect(ensemble.url + chroot) as theirs:
            lease = ours.lock("a", ttl=20).acquire()
            ensemble.leader.kill9()
            until(lambda: renewed(lease), "the lease is renewed by the next leader")
            assert not tried(theirs, "a")
            lease.check()
            lease.release()
            assert theirs.lock("a").acquire(timeout=PATIENCE).fence > lease.fence

    def test_a_client_cut_off_with_one_server_goes_on_with_another(self, ensemble: Ensemble, chroot: str) -> None:
        with FaultProxy(ensemble.servers[0].address) as one, FaultProxy(ensemble.servers[1].address) as other:
            proxies = [one, other]
            url = f"zookeeper://{HOST}:{one.port},{HOST}:{other.port}{chroot}"
            with dibs.connect(url) as client:
                lease = client.lock("a", ttl=6).acquire()
                [used] = [proxy for proxy in proxies if proxy.connections]
                with used.black_hole("requests"), used.black_hole("replies"):
                    until(lambda: renewed(lease), "the lease is renewed by another server")
                    assert next(proxy for proxy in proxies if proxy is not used).connections
                lease.check()

    def test_a_follower_that_is_cut_off_from_the_leader_extends_nothing(self, ensemble: Ensemble, chroot: str) -> None:
        """It would go on answering reads for a while: two of three stand still, and the third knows no better."""
        follower = ensemble.followers[0]
        with dibs.connect(f"zookeeper://{HOST}:{follower.port}{chroot}") as client:
            lease = client.lock("a", ttl=SHORT).acquire()
            others = [server for server in ensemble.servers if server is not follower]
            for server in others:
                server.stop()
            assert lease.lost.wait(PATIENCE)
            assert lease.lost_reason is LossReason.EXPIRED
            for server in others:
                server.cont()


def renewed(lease: dibs.Lease) -> bool:
    try:
        lease.renew()
    except StoreUnavailable:
        return False
    return True


def tried(client: dibs.Client, name: str) -> bool:
    lease = None
    while True:
        try:
            lease = client.lock(name).try_acquire()
        except StoreUnavailable:
            continue
        return lease is not None
