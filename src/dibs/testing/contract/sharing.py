"""Shared locks: readers together, a writer alone, and nobody starves."""

from __future__ import annotations

import functools

import pytest

from dibs.core.client import Client
from dibs.core.lock import Lock
from dibs.errors import LeaseLost, LossReason, Misuse, NotAcquired
from dibs.share import SHARED
from dibs.stores.guarantees import Ability
from dibs.stores.store import Busy, Grant
from dibs.testing.contract.ownership import an_old_claim_does_not_hold
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.waiting import CLOSE, granted, joined, waiters_are
from dibs.testing.contract.world import STEP, Happening, World


class Sharing(Kind):
    """Several may hold a shared lock, and then nobody holds all of it."""

    @needs(Ability.SHARED)
    async def test_those_who_share_a_lock_hold_it_together(self, world: World) -> None:
        name = world.name()
        leases = [await world.client().lock(name, shared=True).acquire(timeout=0) for _ in range(3)]
        assert len({lease.fence for lease in leases}) == 3
        state = await world.store.show(name, STEP)
        assert [holder.fence for holder in state.holders] == sorted(lease.fence for lease in leases)
        assert {holder.share for holder in state.holders} == {"shared"}
        assert [holder.fence for holder in await world.client().holders(name)] == [h.fence for h in state.holders]

    @needs(Ability.SHARED)
    @needs(Ability.EXPIRY)
    async def test_a_claim_of_a_share_does_not_hold_by_a_later_grant_of_its_token(self, world: World) -> None:
        await an_old_claim_does_not_hold(world, SHARED)

    @needs(Ability.SHARED)
    async def test_nobody_gets_all_of_what_is_shared(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        first, second = [await world.client().lock(name, shared=True).acquire(timeout=0) for _ in range(2)]
        with pytest.raises(NotAcquired) as refused:
            await theirs.lock(name).acquire(timeout=0)
        assert refused.value.holder is not None
        assert refused.value.holder.fence in {first.fence, second.fence}
        await first.release()
        assert await theirs.lock(name).try_acquire() is None
        await second.release()
        lease = await theirs.lock(name).acquire(timeout=0)
        assert lease.fence > second.fence

    @needs(Ability.SHARED)
    async def test_nobody_shares_what_one_holds_alone(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        lease = await world.client().lock(name, note="writes").acquire(timeout=0)
        with pytest.raises(NotAcquired) as refused:
            await theirs.lock(name, shared=True).acquire(timeout=0)
        assert refused.value.holder is not None
        assert refused.value.holder.note == "writes"
        await lease.release()
        assert await theirs.lock(name, shared=True).try_acquire() is not None

    @needs(Ability.SHARED)
    async def test_a_writer_waits_until_all_readers_are_gone(self, world: World) -> None:
        name, client = world.name(), world.client()
        readers = [await world.client().lock(name, shared=True).acquire(timeout=0) for _ in range(2)]
        writer = world.begin(client.lock(name).acquire)
        await world.until(lambda: waiters_are(world, name, 1))
        await readers[0].release()
        assert await waiters_are(world, name, 1)
        await readers[1].release()
        assert (await writer.result()).fence > readers[1].fence

    @needs(Ability.SHARED)
    async def test_a_writer_that_waits_is_not_starved_by_readers(self, world: World) -> None:
        async def attempt() -> bool:
            name, order = world.name(), list[str]()
            reader = await world.client().lock(name, shared=True).acquire(timeout=0)
            writer = await wait_in_line(world, world.client().lock(name), "writer", order, 1)
            assert await world.client().lock(name, shared=True).try_acquire() is None
            late = await wait_in_line(world, world.client().lock(name, shared=True), "reader", order, 2)
            await reader.release()
            await writer.result()
            await late.result()
            return order == ["writer", "reader"]

        await world.orderly(attempt)

    @needs(Ability.SHARED)
    async def test_readers_that_wait_get_in_together_and_before_a_later_writer(self, world: World) -> None:
        name, inside, go = world.name(), set[int](), world.event()
        held = await world.client().lock(name).acquire(timeout=0)

        async def read(client: Client, place: int) -> None:
            async with client.lock(name, shared=True):
                inside.add(place)
                if len(inside) == 3:
                    go.set()
                assert await go.wait(STEP), "the readers were let in one after the other"

        readers = list[Happening[None]]()
        for place in range(3):
            readers.append(world.begin(functools.partial(read, world.client(), place)))
            await world.until(lambda place=place: waiters_are(world, name, place + 1))  # type: ignore[misc]
        writer = world.begin(world.client().lock(name).acquire)
        await world.until(lambda: waiters_are(world, name, 4))
        await held.release()
        for reader in readers:
            await reader.result()
        await (await writer.result()).release()

    @needs(Ability.SHARED)
    async def test_one_task_cannot_wait_for_itself(self, world: World) -> None:
        client, name = world.client(), world.name()
        async with client.lock(name, shared=True):
            for lock in (client.lock(name), client.lock(name, shared=True)):
                with pytest.raises(Misuse, match="already holds a part"):
                    await lock.acquire(timeout=0)
        async with client.lock(name):
            with pytest.raises(Misuse, match="already holds"):
                await client.lock(name, shared=True).acquire(timeout=0)

    @needs(Ability.SHARED)
    async def test_tasks_of_one_client_share_a_lock(self, world: World) -> None:
        client, name, met = world.client(), world.name(), world.event()
        inside = 0

        async def read() -> None:
            nonlocal inside
            async with client.lock(name, shared=True):
                inside += 1
                if inside == 3:
                    met.set()
                assert await met.wait(STEP), "tasks of one client held it one after the other"

        await world.together(*[read] * 3)
        assert (await world.store.show(name, STEP)).holders == ()

    @needs(Ability.SHARED)
    @needs(Ability.EXPIRY)
    async def test_a_reader_that_is_gone_keeps_a_writer_out_for_its_ttl_and_no_longer(self, world: World) -> None:
        name = world.name()
        gone = await world.crashed(name, world.short, SHARED)
        alive = await world.client().lock(name, shared=True).acquire(timeout=0)
        await world.until(lambda: holders_are(world, name, 1))
        await alive.release()
        assert (await world.client().lock(name).acquire(timeout=0)).fence > gone.fence
        assert await world.store.renew([gone], STEP) != [None]

    @needs(Ability.SHARED)
    async def test_each_reader_has_a_lease_of_its_own(self, world: World) -> None:
        name, client = world.name(), world.client()
        first = await world.client().lock(name, shared=True).acquire(timeout=0)
        second = await client.lock(name, shared=True).acquire(timeout=0)
        await second.renew()
        assert await world.client().evict(name, fence=first.fence, reason="it hangs")
        assert await holders_are(world, name, 1)
        with pytest.raises(LeaseLost) as lost:
            await first.renew()
        assert lost.value.reason is LossReason.EVICTED
        await second.renew()
        evicted = (await world.store.show(name, STEP)).evicted
        assert evicted is not None
        assert (evicted.fence, evicted.reason) == (first.fence, "it hangs")
        assert not await world.client().evict(name, fence=first.fence)
        await second.release()
        assert await holders_are(world, name, 0)

    @needs(Ability.SHARED)
    async def test_a_guard_is_for_one_holder_alone(self, world: World) -> None:
        lock = world.client().lock(world.name(), shared=True)
        with pytest.raises(Misuse, match="guard"):
            lock.guarded(NoGuard())

    @needs(Ability.SHARED)
    @needs(Ability.ORDER)
    async def test_a_first_in_line_that_is_gone_delays_the_next_for_a_moment_only(self, world: World) -> None:
        """Be it a writer or a reader, and also where nobody lets go any more: the room is there already."""
        reader = await world.crashed(world.name(), 60, SHARED)
        dead = world.ask(reader.name, queue=True)  # a writer, which will not come
        assert isinstance(await world.store.grant(dead, STEP), Busy)
        waits = world.ask(reader.name, queue=True, share=SHARED)
        assert isinstance(await world.store.grant(waits, STEP), Busy)
        await world.store.release(dead.name, dead.token, STEP)  # now there is room, for which nobody has asked yet
        assert isinstance(await world.store.grant(waits, STEP), Grant)
        assert isinstance(await world.store.grant(world.ask(reader.name, share=SHARED), STEP), Grant)

    @needs(Ability.SHARED)
    async def test_a_shared_grant_asked_for_again_is_the_same_grant(self, world: World) -> None:
        ask = world.ask(world.name(), share=SHARED)
        first, again = [await world.store.grant(ask, STEP) for _ in range(2)]
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert first.fence == again.fence
        assert await world.store.release(ask.name, ask.token, STEP) is None
        assert await world.store.release(ask.name, ask.token, STEP) is not None
        assert (await world.store.show(ask.name, STEP)).holders == ()

    @needs(Ability.SHARED)
    @needs(Ability.HANDOVER)
    async def test_a_shared_lease_can_be_handed_over(self, world: World) -> None:
        name = world.name()
        text = await (await world.client().lock(name, shared=True).acquire(timeout=0)).detach()
        other = await world.client().lock(name, shared=True).acquire(timeout=0)
        lease = await world.client().resume(text)
        assert await holders_are(world, name, 2)
        await lease.release()
        await other.release()
        assert await holders_are(world, name, 0)

    @needs(Ability.SHARED)
    async def test_readers_and_writers_never_meet(self, world: World) -> None:
        name, readers, writers, wrong = world.name(), 0, 0, 0

        async def work(client: Client, writes: bool) -> None:
            nonlocal readers, writers, wrong
            for _ in range(4):
                async with client.lock(name, shared=not writes):
                    readers, writers = readers + (not writes), writers + writes
                    wrong += writers > 1 or (writers > 0 and readers > 0)
                    await world.sleep(0.001)
                    wrong += writers > 1 or (writers > 0 and readers > 0)
                    readers, writers = readers - (not writes), writers - writes

        await world.together(*(functools.partial(work, world.client(), place % 2 == 0) for place in range(4)))
        assert wrong == 0

    @needs(Ability.SHARED)
    @needs(Ability.ORDER)
    async def test_who_has_no_ticket_does_not_share_past_who_has_one(self, world: World) -> None:
        async def attempt() -> float:
            held = await world.crashed(world.name(), 60)
            first = world.ask(held.name, queue=True)
            assert isinstance(await world.store.grant(first, STEP), Busy)
            began = world.now()
            await world.store.release(held.name, held.token, STEP)
            barged = isinstance(await world.store.grant(world.ask(held.name, share=SHARED), STEP), Grant)
            took = world.now() - began
            assert not barged or took > CLOSE, "a shared lock without a ticket took what was let go for another"
            assert barged or await granted(world, first)
            return took

        await world.measured(attempt, at_least=0, at_most=CLOSE)


class NoGuard:
    """A guard that is never asked."""

    def claim(self, name: str, fence: int, /) -> None:
        """Nothing."""

    def seal(self, name: str, fence: int, /) -> None:
        """Nothing."""


async def wait_in_line(world: World, lock: Lock, who: str, order: list[str], line: int) -> Happening[None]:
    """Let *who* wait for *lock*; return when so many stand in line."""

    async def main() -> None:
        async with lock:
            order.append(who)

    waiter = world.begin(main)
    await world.until(lambda: joined(world, waiter, lock.name, line))
    return waiter


async def holders_are(world: World, name: str, count: int) -> bool:
    """Whether so many hold *name* by the store."""
    return len((await world.store.show(name, STEP)).holders) == count
