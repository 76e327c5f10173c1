"""What a holder leaves: how an acquire is answered with it, and how a lease ends with it, whatever fails."""

from __future__ import annotations

import asyncio

import pytest

from core.worlds import CoreTests, Untouchable, untouchable
from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.core.record import finish, remember
from dibs.errors import LeaseLost, Misuse, NotAcquired, NotSupported, StoreUnavailable
from dibs.holder import Record
from dibs.runtime import run
from dibs.stores.guarantees import Ability
from dibs.stores.record_store import LONGEST_RECORD, record_store
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.watched import drop_reply, drop_request, hang, refuse
from dibs.testing.contract.world import STEP, World

KEEP = 60.0


class TestRecording(CoreTests):
    async def test_a_record_answers_and_nothing_is_held(self, world: World) -> None:
        client, name = world.client(), world.name()
        await finish(client._context, await taken(client, name), b"done", KEEP)
        found = await client.lock(name)._take_or_recall(0, 0)
        assert isinstance(found, Record)
        assert found.data == b"done"
        assert await is_free(world, name)
        assert world.asks("release") == 0

    async def test_who_waits_gets_the_record_when_the_holder_finishes(self, world: World) -> None:
        first, second, name = world.client(), world.client(), world.name()
        lease = await taken(first, name)
        waiting = world.begin(lambda: second.lock(name)._take_or_recall(0, None))
        await world.until(lambda: someone_waits(first, name))
        await finish(first._context, lease, b"done", KEEP)
        found = await waiting.result()
        assert isinstance(found, Record)
        assert (await first.show(name)).waiting == ()

    async def test_a_held_name_is_not_acquired(self, world: World) -> None:
        first, second, name = world.client(), world.client(), world.name()
        lease = await taken(first, name)
        for timeout in (0, 0.05):
            with pytest.raises(NotAcquired) as refused:
                await second.lock(name)._take_or_recall(0, timeout)
            assert refused.value.holder is not None
            assert refused.value.holder.fence == lease.fence

    async def test_an_ask_whose_answer_is_lost_is_resolved(self, world: World) -> None:
        client, name = world.client(), world.name()
        for fault in (drop_reply, drop_request):
            world.wire(client).spoil("grant_unless_recorded", fault)
            lease = await taken(client, name)
            await lease.release()

    async def test_finishing_is_repeated_until_it_is_answered(self, world: World) -> None:
        client, name = world.client(), world.name()
        for fault in (drop_reply, drop_request, refuse):
            lease = await taken(client, name, after=await last_fence(client, name))
            world.wire(client).spoil("finish", fault)
            await finish(client._context, lease, b"done", KEEP)
            kept = await client.record(name)
            assert kept is not None
            assert kept.fence == lease.fence
            assert not lease.lost
            with pytest.raises(Misuse, match="was finished"):
                lease.check()

    async def test_a_lease_that_cannot_be_finished_is_not_given_back_without_its_record(self, world: World) -> None:
        """It ends by its ttl; and what could not be told is said."""
        client, name = world.client(), world.name()
        for fault in (refuse, hang(world.runtime)):
            lease = await taken(client, name, ttl=world.short)
            world.wire(client).spoil_every("finish", fault)
            with pytest.raises(StoreUnavailable):
                await finish(client._context, lease, b"done", KEEP)
            world.wire(client).heal()
            await world.until(lambda: is_free(world, name))
        assert world.asks("release") == 0

    async def test_who_cannot_finish_when_the_client_is_closed_does_not_go_on_trying(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await taken(client, name, ttl=600)
        world.wire(client).spoil_every("finish", refuse)
        finishing = world.begin(lambda: finish(client._context, lease, b"done", KEEP))
        await world.until(lambda: asked_to_finish(world))
        await client.close()
        with pytest.raises(StoreUnavailable):
            await finishing.result()

    async def test_who_comes_late_is_told_so(self, world: World) -> None:
        """By its own clock, or by the store; what the other has done stays."""
        client, other, name = world.client(), world.client(), world.name()
        lost = await taken(client, name, ttl=world.short)
        world.wire(client).spoil_every("renew", refuse)
        assert await lost.lost.wait(STEP)
        with pytest.raises(LeaseLost):
            await finish(client._context, lost, b"late", KEEP)
        world.wire(client).heal()
        await world.until(lambda: is_free(world, name))
        evicted = await taken(client, name)
        await other.evict(name, fence=evicted.fence)
        await finish(other._context, await taken(other, name), b"other", KEEP)
        with pytest.raises(LeaseLost, match="evicted"):
            await finish(client._context, evicted, b"late", KEEP)
        kept = await client.record(name)
        assert kept is not None
        assert kept.data == b"other"

    async def test_what_is_remembered_does_not_end_the_lease(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await taken(client, name)
        await remember(client._context, lease, b"begun", KEEP)
        lease.check()
        assert await holds(world, name) == lease.fence
        await client.evict(name, fence=lease.fence)
        with pytest.raises(LeaseLost, match="evicted"):
            await remember(client._context, lease, b"half", KEEP)
        assert lease.lost

    async def test_records_are_listed_and_forgotten(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await taken(client, name)
        await finish(client._context, lease, b"done", KEEP)
        [record] = await client.records(name)
        assert record[:3] == (name, lease.fence, b"done")
        assert not await client.forget_record(name, fence=lease.fence + 1)
        assert await client.forget_record(name, fence=lease.fence)
        assert await client.records(name) == []
        assert await client.record(name) is None

    async def test_a_record_that_is_too_large_is_refused_before_the_lease_ends(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await taken(client, name)
        with pytest.raises(Misuse, match=f"{LONGEST_RECORD} is the most"):
            await finish(client._context, lease, bytes(LONGEST_RECORD + 1), KEEP)
        await finish(client._context, lease, b"done", KEEP)

    async def test_a_cancel_does_not_keep_a_record_from_being_written(self, world: World, asyncio_only: None) -> None:
        client, name = world.client(), world.name()
        lease = await taken(client, name)
        world.wire(client).spoil("finish", refuse)
        task = asyncio.ensure_future(finish(client._context, lease, b"done", KEEP))
        await world.until(lambda: asked(world, "finish"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.record(name) is not None


@pytest.mark.parametrize("most", [0, -1, True, 1.5, 10_001])
def test_a_list_has_a_bound(most: int) -> None:
    with pytest.raises(Misuse, match="most="):
        run(untouchable().records(most=most))


def test_a_store_that_keeps_no_records_says_which_do() -> None:
    client = untouchable()
    declared = client._store.guarantees._replace(cannot={Ability.RECORDS: "take redis:"})
    client._store.guarantees = declared  # type: ignore[misc]
    for ask in (client.record("a"), client.records(), client.forget_record("a", fence=1)):
        with pytest.raises(NotSupported, match="keeps no records: take redis:"):
            run(ask)


def test_a_store_that_neither_keeps_records_nor_declares_why_is_named() -> None:
    with pytest.raises(NotSupported, match=r"keeps no records: it has to declare that in Untouchable\.guarantees"):
        record_store(Untouchable())


async def taken(client: Client, name: str, *, ttl: float = 30, after: int = 0) -> Lease:
    """A lease on *name*, which has no record after the fence *after*."""
    lease = await client.lock(name, ttl=ttl)._take_or_recall(after, STEP)
    assert isinstance(lease, Lease), lease
    return lease


async def asked_to_finish(world: World) -> bool:
    return world.asks("finish") > 0


async def last_fence(client: Client, name: str) -> int:
    record = await client.record(name)
    return record.fence if record is not None else 0


async def someone_waits(client: Client, name: str) -> bool:
    return bool((await client.show(name)).waiting)


async def asked(world: World, step: str) -> bool:
    return world.asks(step) > 0
