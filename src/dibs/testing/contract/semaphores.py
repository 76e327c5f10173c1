"""Semaphores: never more weight than slots, in the order of arrival, and a slot comes back from who is gone."""

from __future__ import annotations

import functools

import pytest

from dibs.core.client import Client
from dibs.errors import LeaseLost, Misuse, NotAcquired
from dibs.share import SHARED, Share
from dibs.stores.guarantees import Ability
from dibs.stores.store import Busy, Grant
from dibs.testing.contract.sharing import holders_are, wait_in_line
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.waiting import CLOSE, granted, waiters_are
from dibs.testing.contract.world import STEP, World


class Semaphores(Kind):
    """A name with slots."""

    @needs(Ability.SEMAPHORE)
    async def test_a_semaphore_has_so_many_slots(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        leases = [await world.client().semaphore(name, 3).acquire(timeout=0) for _ in range(3)]
        with pytest.raises(NotAcquired) as refused:
            await theirs.semaphore(name, 3).acquire(timeout=0)
        assert refused.value.holder is not None
        assert refused.value.holder.fence in {lease.fence for lease in leases}
        assert {holder.share for holder in (await world.store.show(name, STEP)).holders} == {"1 of 3 slots"}
        await leases[1].release()
        lease = await theirs.semaphore(name, 3).acquire(timeout=0)
        assert lease.fence > max(lease.fence for lease in leases)

    @needs(Ability.SEMAPHORE)
    async def test_weights_add_up(self, world: World) -> None:
        name, client = world.name(), world.client()
        heavy = await client.semaphore(name, 5, weight=3).acquire(timeout=0)
        light = await client.semaphore(name, 5, weight=2).acquire(timeout=0)
        assert await client.semaphore(name, 5).try_acquire() is None
        await light.release()
        assert await client.semaphore(name, 5, weight=3).try_acquire() is None
        await heavy.release()
        assert await client.semaphore(name, 5, weight=5).try_acquire() is not None

    @needs(Ability.SEMAPHORE)
    async def test_a_released_slot_goes_to_who_came_first(self, world: World) -> None:
        async def attempt() -> bool:
            name, order = world.name(), list[str]()
            held = [await world.client().semaphore(name, 2).acquire(timeout=0) for _ in range(2)]
            waiters = [
                await wait_in_line(world, world.client().semaphore(name, 2), str(place), order, place + 1)
                for place in range(4)
            ]
            await held[0].release()
            for waiter in waiters:
                await waiter.result()
            return order == ["0", "1", "2", "3"]

        await world.orderly(attempt)

    @needs(Ability.SEMAPHORE)
    @needs(Ability.ORDER)
    async def test_a_light_one_does_not_pass_a_heavy_one_that_came_first(self, world: World) -> None:
        name = world.name()
        held = await world.crashed(name, 60, Share(2, 3))
        heavy, light = world.ask(name, queue=True, share=Share(3, 3)), world.ask(name, queue=True, share=Share(1, 3))
        assert isinstance(await world.store.grant(heavy, STEP), Busy)
        for ask in (light, world.ask(name, share=Share(1, 3))):
            assert isinstance(await world.store.grant(ask, STEP), Busy)
        await world.store.release(name, held.token, STEP)
        assert isinstance(await world.store.grant(heavy, STEP), Grant)
        assert isinstance(await world.store.grant(light, STEP), Busy)
        await world.store.release(name, heavy.token, STEP)
        assert isinstance(await world.store.grant(light, STEP), Grant)

    @needs(Ability.SEMAPHORE)
    @needs(Ability.ORDER)
    async def test_room_is_kept_for_the_first_in_line_for_a_moment(self, world: World) -> None:
        async def attempt() -> float:
            name = world.name()
            held = [await world.crashed(name, 60, Share(1, 2)) for _ in range(2)]
            first = world.ask(name, queue=True, share=Share(1, 2))
            assert isinstance(await world.store.grant(first, STEP), Busy)
            began = world.now()
            await world.store.release(name, held[0].token, STEP)
            barged = isinstance(await world.store.grant(world.ask(name, share=Share(1, 2)), STEP), Grant)
            took = world.now() - began
            assert not barged or took > CLOSE, "an ask without a ticket took a slot that was let go for another"
            assert barged or isinstance(await world.store.grant(first, STEP), Grant)
            return took

        await world.measured(attempt, at_least=0, at_most=CLOSE)

    @needs(Ability.SEMAPHORE)
    async def test_a_first_in_line_that_is_gone_keeps_nobody_waiting_for_long(self, world: World) -> None:
        name, client = world.name(), world.client()
        held = [await world.crashed(name, 60, Share(1, 2)) for _ in range(2)]
        assert isinstance(await world.store.grant(world.ask(name, queue=True, share=Share(1, 2)), STEP), Busy)
        alive = world.begin(client.semaphore(name, 2).acquire)
        await world.until(lambda: waiters_are(world, name, 2))
        await world.store.release(name, held[0].token, STEP)
        assert (await alive.result()).fence > held[1].fence

    @needs(Ability.SEMAPHORE)
    async def test_a_waiter_that_gives_up_lets_the_next_have_the_room(self, world: World) -> None:
        name = world.name()
        await world.crashed(name, 60, Share(2, 3))
        heavy, light = world.ask(name, queue=True, share=Share(3, 3)), world.ask(name, queue=True, share=Share(1, 3))
        assert isinstance(await world.store.grant(heavy, STEP), Busy)
        assert isinstance(await world.store.grant(light, STEP), Busy)
        await world.store.release(name, heavy.token, STEP)
        await world.until(lambda: granted(world, light), within=1.0)

    @needs(Ability.SEMAPHORE)
    @needs(Ability.EXPIRY)
    async def test_the_slot_of_a_holder_that_is_gone_comes_back(self, world: World) -> None:
        name, client = world.name(), world.client()
        await world.crashed(name, 60, Share(1, 2))
        gone = await world.crashed(name, world.short, Share(1, 2))
        assert await client.semaphore(name, 2).try_acquire() is None
        lease = await client.semaphore(name, 2).acquire(timeout=STEP)
        assert lease.fence > gone.fence
        assert await world.store.renew([gone], STEP) != [None]
        assert await world.store.release(name, gone.token, STEP) is not None
        assert await holders_are(world, name, 2)

    @needs(Ability.SEMAPHORE)
    @needs(Ability.EXPIRY)
    async def test_a_holder_that_lost_its_slot_is_told(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.semaphore(name, 2).acquire(timeout=0)
        await world.store.release(name, lease.token, STEP)
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert lease.lost

    @needs(Ability.SEMAPHORE)
    @needs(Ability.EXPIRY)
    async def test_a_slot_that_is_renewed_stays_taken(self, world: World) -> None:
        name = world.name()
        held = [await world.crashed(name, world.short, Share(1, 2)) for _ in range(2)]
        assert await world.store.renew([claim._replace(ttl=30) for claim in held], STEP) == [None, None]
        assert await world.store.renew(held, STEP) == [None, None], "a renewal never shortens"
        await world.sleep(1.5 * world.short)
        assert await holders_are(world, name, 2)
        assert isinstance(await world.store.grant(world.ask(name, share=Share(1, 2)), STEP), Busy)
        assert isinstance(await world.store.grant(world.ask(name), STEP), Busy)

    @needs(Ability.SEMAPHORE)
    async def test_other_slots_than_those_who_hold_it_are_refused(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.semaphore(name, 3).acquire(timeout=0)
        for lock in (client.semaphore(name, 4), client.semaphore(name, 2, weight=2)):
            with pytest.raises(Misuse, match="semaphore of 3 slots"):
                await lock.acquire(timeout=0)
        with pytest.raises(Misuse, match="a shared lock"):
            await world.client().lock(name, shared=True).acquire(timeout=0)
        await lease.release()
        async with client.semaphore(name, 4):
            pass

    @needs(Ability.SEMAPHORE)
    async def test_a_waiter_for_other_slots_is_told_and_stops_nobody(self, world: World) -> None:
        name = world.name()
        held = await world.client().lock(name).acquire(timeout=0)
        first = world.begin(world.client().semaphore(name, 2).acquire)
        await world.until(lambda: waiters_are(world, name, 1))
        odd = world.begin(world.client().semaphore(name, 5).acquire)
        await world.until(lambda: waiters_are(world, name, 2))
        third = world.begin(world.client().semaphore(name, 2).acquire)
        await world.until(lambda: waiters_are(world, name, 3))
        await held.release()
        await first.result()
        with pytest.raises(Misuse, match="semaphore of 2 slots"):
            await odd.result()
        await third.result()

    @needs(Ability.SEMAPHORE)
    async def test_a_lock_takes_all_slots_and_waits_for_them(self, world: World) -> None:
        async def attempt() -> bool:
            name, order = world.name(), list[str]()
            slot = await world.client().semaphore(name, 2).acquire(timeout=0)
            alone = await wait_in_line(world, world.client().lock(name), "alone", order, 1)
            later = await wait_in_line(world, world.client().semaphore(name, 2), "slot", order, 2)
            await slot.release()
            await alone.result()
            await later.result()
            return order == ["alone", "slot"]

        await world.orderly(attempt)

    @needs(Ability.SEMAPHORE)
    async def test_one_task_may_take_several_slots(self, world: World) -> None:
        """To hand them out to others; but not in blocks, for each of which nobody could tell its lease."""
        client, name = world.client(), world.name()
        leases = [await client.semaphore(name, 2).acquire(timeout=0) for _ in range(2)]
        assert await client.semaphore(name, 2).try_acquire() is None
        for lease in leases:
            await lease.release()
        async with client.semaphore(name, 2):
            with pytest.raises(Misuse, match="weight="):
                async with client.semaphore(name, 2):
                    pass
            assert await holders_are(world, name, 1)
        assert await holders_are(world, name, 0)

    @needs(Ability.SEMAPHORE)
    async def test_what_cannot_be_asked_for_is_refused_before_anything_is_sent(self, world: World) -> None:
        client, name = world.client(), world.name()
        for slots, weight in ((0, 1), (-1, 1), (True, 1), (2.5, 1), (3, 0), (3, 4), (3, True), (10**9, 1), ("3", 1)):
            with pytest.raises(Misuse):
                client.semaphore(name, slots, weight=weight)  # type: ignore[arg-type]
        assert world.asks("grant") == 0

    @needs(Ability.SEMAPHORE)
    async def test_never_more_than_slots_are_inside(self, world: World) -> None:
        name, inside, most = world.name(), 0, 0

        async def work(client: Client, weight: int) -> None:
            nonlocal inside, most
            for _ in range(4):
                async with client.semaphore(name, 3, weight=weight):
                    inside += weight
                    most = max(most, inside)
                    await world.sleep(0.001)
                    inside -= weight

        await world.together(*(functools.partial(work, world.client(), weight) for weight in (1, 1, 1, 2, 3)))
        assert most == 3

    @needs(Ability.SEMAPHORE)
    @needs(Ability.ORDER)
    async def test_one_release_wakes_one_waiter(self, world: World) -> None:
        name, crowd, order = world.name(), 6, list[str]()
        held = [await world.client().semaphore(name, 2).acquire(timeout=0) for _ in range(2)]
        waiters = [
            await wait_in_line(world, world.client().semaphore(name, 2), str(place), order, place + 1)
            for place in range(crowd)
        ]
        before, began = world.asks("grant"), world.now()
        await held[0].release()
        for waiter in waiters:
            await waiter.result()
        polls = crowd * (world.now() - began) / 0.1
        assert world.asks("grant") - before <= 2 * crowd + polls

    @needs(Ability.SEMAPHORE)
    @needs(Ability.SHARED)
    async def test_closing_a_client_gives_all_parts_back(self, world: World) -> None:
        client, name, shared = world.client(), world.name(), world.name()
        leases = [await client.semaphore(name, 2).acquire(timeout=0) for _ in range(2)]
        leases.append(await client.lock(shared, shared=True).acquire(timeout=0))
        await client.close()
        assert await holders_are(world, name, 0)
        assert await holders_are(world, shared, 0)
        del leases

    @needs(Ability.SEMAPHORE)
    @needs(Ability.SHARED)
    async def test_many_parts_are_renewed_together_with_whole_locks(self, world: World) -> None:
        held = [
            await world.crashed(world.name(), 30, share) for share in (None, SHARED, Share(2, 3), None, Share(1, 1))
        ]
        await world.store.release(held[2].name, held[2].token, STEP)
        answers = await world.store.renew(held, STEP)
        assert [answer is None for answer in answers] == [True, True, False, True, True]
