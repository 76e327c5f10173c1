"""Shared locks and semaphores in ZooKeeper, beside the contract: nodes, writes, and calls of waiters."""

from __future__ import annotations

import functools

import pytest
from kazoo.client import KazooClient

from dibs.core.client import Client
from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.share import SHARED, Share
from dibs.stores.store import Busy, Claim, Grant, Store
from dibs.stores.zookeeper import grant as zookeeper_grant
from dibs.stores.zookeeper import watch as zookeeper_watch
from dibs.stores.zookeeper.store import ZooKeeperStore
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.testing.contract.sharing import holders_are
from dibs.testing.contract.world import STEP, World
from servers.zookeeper import ZooKeeperServer
from stores.zookeeper.test_store import AT_ONCE, NEVER, Called, ZooKeeperKind, end_session, in_the_queue, wait_for

ONE, BOTH = Share(1, 2), Share(2, 2)


class SharesKind(ZooKeeperKind):
    """Tests that take single steps: however slow they are, no waiter loses its ticket."""

    @pytest.fixture(autouse=True)
    def never_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(zookeeper_watch, "ABSENT", NEVER)


class TestNodes(SharesKind):
    async def test_a_node_says_for_which_share_it_stands(self, world: World, raw: KazooClient, chroot: str) -> None:
        ask = world.ask("a", share=ONE)
        assert isinstance(await world.store.grant(ask, STEP), Grant)
        [node] = raw.get_children(f"{chroot}/default/a")
        assert node.startswith("part-1of2-")
        assert ask.token.rpartition("-")[2] not in node

    async def test_an_ask_for_other_slots_leaves_no_node(self, world: World, raw: KazooClient, chroot: str) -> None:
        await world.crashed("a", 30, ONE)
        for queue in (False, True):
            with pytest.raises(Misuse, match="semaphore of 2 slots"):
                await world.store.grant(world.ask("a", share=Share(1, 3), queue=queue), STEP)
            assert len(raw.get_children(f"{chroot}/default/a")) == 1

    async def test_a_release_never_writes_down_a_fence_that_is_lower_than_the_last(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        first, second, third = [await world.crashed("a", 30, SHARED) for _ in range(3)]
        for claim, last in ((second, second), (first, second), (third, third)):
            await world.store.release("a", claim.token, STEP)
            assert int(raw.get(f"{chroot}/default/a")[0]) == last.fence
            assert (await world.store.show("a", STEP)).fence == third.fence

    async def test_the_last_fence_does_not_fall_when_the_newest_is_broken_and_then_another(self, world: World) -> None:
        first, second, third = [await world.crashed("a", 30, SHARED) for _ in range(3)]
        for broken in (third, second):
            assert await world.store.evict("a", broken.fence, "", STEP)
            assert (await world.store.show("a", STEP)).fence == third.fence
        await world.store.release("a", first.token, STEP)
        assert (await world.store.show("a", STEP)).fence == third.fence

    async def test_nor_does_one_that_meets_a_higher_one_on_its_way(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = [await world.crashed("a", 30, SHARED) for _ in range(2)]
        giving = zookeeper_of(world.store)._releases
        notes = giving._note

        async def meet_another(*args: object) -> object:
            note = await notes(*args)  # type: ignore[arg-type]
            monkeypatch.setattr(giving, "_note", notes)
            raw.set(f"{chroot}/default/a", b"%d" % second.fence)
            return note

        monkeypatch.setattr(giving, "_note", meet_another)
        assert await world.store.release("a", first.token, STEP) is None
        assert int(raw.get(f"{chroot}/default/a")[0]) == second.fence
        assert len(raw.get_children(f"{chroot}/default/a")) == 1

    async def test_since_when_one_of_several_holds_it_does_not_depend_on_the_others(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        """Its node was created then; or, if it had to wait for its turn, it was written to then."""
        first, second = [await world.crashed("a", 30, ONE) for _ in range(2)]
        ask = world.ask("a", queue=True, share=ONE)
        assert isinstance(await world.store.grant(ask, STEP), Busy)
        began = [each.since for each in await world.store.holders("a", STEP)]
        await world.sleep(0.01)
        await world.store.release("a", second.token, STEP)
        grant = await world.store.grant(ask, STEP)
        assert isinstance(grant, Grant)
        await world.until(functools.partial(was_written, raw, f"{chroot}/default/a"))
        holders = await world.store.holders("a", STEP)
        assert [each.fence for each in holders] == [first.fence, grant.fence]
        assert holders[0].since == began[0]
        assert holders[1].since > began[1]


class TestCalls(Called, SharesKind):
    async def test_a_share_that_was_granted_after_a_wait_is_renewed_and_can_be_a_condition(
        self, world: World, raw: KazooClient
    ) -> None:
        """Its holder has written to its node, to tell the next waiter."""
        held, ask = await world.crashed("a", 30, BOTH), world.ask("a", queue=True, share=ONE)
        assert isinstance(await world.store.grant(ask, STEP), Busy)
        await world.store.release("a", held.token, STEP)
        grant = await world.store.grant(ask, STEP)
        assert isinstance(grant, Grant)
        claim = Claim("a", ask.token, grant.fence, grant.ttl)
        assert await world.store.renew([claim], STEP) == [None]
        transaction = raw.transaction()
        zookeeper_of(world.store).compare(claim).add_to(transaction)
        assert transaction.commit() == [True]

    async def test_a_waiter_that_listens_after_the_one_ahead_was_let_in_is_called_all_the_same(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held, others = await world.crashed("a", 30, BOTH), entered(world.client())
        ahead, ask = (world.ask("a", queue=True, share=ONE) for _ in range(2))
        assert isinstance(await others.grant(ahead, STEP), Busy)
        store = zookeeper_of(world.store)
        watches = store._grants._watch

        async def watch_late(*args: object) -> object:
            await world.store.release("a", held.token, STEP)
            assert isinstance(await others.grant(ahead, STEP), Grant)
            await world.until(functools.partial(was_written, raw, f"{chroot}/default/a"))
            return await watches(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(store._grants, "_watch", watch_late)
        assert isinstance(await world.store.grant(ask, STEP), Busy)
        assert store._tickets.all[ask.token].called.is_set()
        assert isinstance(await world.store.grant(ask, STEP), Grant)

    async def test_a_client_let_in_without_a_wait_calls_the_one_behind(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The waiter behind saw it in the queue before there was room, as after an answer that was lost."""
        held, others = await world.crashed("a", 30, BOTH), entered(world.client())
        first, ask = (world.ask("a", queue=True, share=ONE) for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(zookeeper_of(others)._grants, "_watch", refuse)
            with pytest.raises(StoreUnavailable):
                await others.grant(first, STEP)
        assert isinstance(await world.store.grant(ask, STEP), Busy)
        await world.store.release("a", held.token, STEP)
        assert isinstance(await others.grant(first, STEP), Grant)
        await world.until(functools.partial(is_called, zookeeper_of(world.store)._tickets.all[ask.token]))

    async def test_a_slot_whose_session_ended_goes_to_the_waiter(
        self, world: World, zookeeper: ZooKeeperServer
    ) -> None:
        client, ask = world.client(), world.ask("a", queue=True, share=ONE)
        gone = await client.semaphore("a", 2).acquire(timeout=0)
        stays = await world.client().semaphore("a", 2).acquire(timeout=0)
        waiter = world.begin(functools.partial(wait_for, world, ask))
        await world.until(functools.partial(in_the_queue, world, "a", 3))
        end_session(client, zookeeper)
        assert await gone.lost.wait(AT_ONCE)
        assert gone.lost_reason is LossReason.SESSION_ENDED
        assert (await waiter.result()).fence > stays.fence
        await stays.renew()
        assert await holders_are(world, "a", 2)

    async def test_a_writer_is_called_by_the_last_reader_whichever_that_is(self, world: World) -> None:
        readers = [await world.crashed("a", 30, SHARED) for _ in range(3)]
        waiter = world.begin(functools.partial(wait_for, world, world.ask("a", queue=True)))
        await world.until(functools.partial(in_the_queue, world, "a", 4))
        for ticket in (2, 0, 1):
            assert not waiter.over
            await world.store.release("a", readers[ticket].token, STEP)
        assert (await waiter.result()).fence > readers[2].fence

    async def test_of_a_crowd_one_is_called_for_each_slot_and_it_costs_a_few_requests(
        self, world: World, zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(zookeeper_grant, "SETTLED", NEVER)  # a busy machine takes longer to serve them
        crowd = [world.ask("a", queue=True, share=ONE) for _ in range(34)]
        waiters = []
        for ask in crowd:
            answer = await world.store.grant(ask, STEP)
            waiters.append(world.begin(functools.partial(wait_for, world, ask, answer)))
        before = zookeeper.number("zk_packets_received")
        for ask, waiter in zip(crowd, waiters, strict=True):
            await waiter.result()
            await world.store.release("a", ask.token, STEP)
        assert zookeeper.number("zk_packets_received") - before <= 8 * len(crowd)


def entered(client: Client) -> Store:
    """The store of a client that has not been used yet, ready for use."""
    client._context.check_usable()
    return client._store


async def is_called(ticket: ZooKeeperTicket) -> bool:
    return ticket.called.is_set()


async def was_written(raw: KazooClient, path: str) -> bool:
    """Whether a node under *path* was written to: its holder tells the next waiter that it has its turn."""
    return any(raw.get(f"{path}/{node}")[1].version for node in raw.get_children(path))


async def refuse(*_: object) -> None:
    raise StoreUnavailable("zookeeper", "the test lets this step fail")


def zookeeper_of(store: object) -> ZooKeeperStore:
    """The store inside of *store*, which may count its steps."""
    inner = getattr(store, "_store", store)
    assert isinstance(inner, ZooKeeperStore)
    return inner
