"""Several locks as one: all or none, in one order, and the loss of one is the loss of the whole."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from dibs.core.client import Client
from dibs.errors import LeaseLost, Misuse, NotAcquired, StoreUnavailable
from dibs.stores.guarantees import Ability
from dibs.testing.contract.cancelling import moments
from dibs.testing.contract.ownership import holds
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.waiting import CLOSE
from dibs.testing.contract.watched import drop_reply, refuse
from dibs.testing.contract.world import STEP, World


class Together(Kind):
    """What `Client.all` takes."""

    async def test_all_are_held_in_the_block_and_none_after_it(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(3)]
        async with client.all(*reversed(names), note="moves money") as leases:
            assert list(leases) == names
            assert [await holds(world, name) for name in names] == [leases[name].fence for name in names]
            assert leases.fences == {name: leases[name].fence for name in names}
            assert leases.expires_in() > 0
            leases.check()
            await leases.renew()
        assert [await holds(world, name) for name in names] == [None] * 3

    async def test_if_one_is_taken_none_is_held(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(3)]
        held = await world.crashed(names[1], 60)
        assert await client.all(*names).try_acquire() is None
        with pytest.raises(NotAcquired) as refused:
            await client.all(*names).acquire(timeout=0)
        assert refused.value.name == names[1]
        assert [await holds(world, name) for name in names] == [None, held.fence, None]

    async def test_one_timeout_is_for_the_whole(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(2)]
        await world.crashed(names[1], 60)

        async def attempt() -> float:
            began = world.now()
            with pytest.raises(NotAcquired) as refused:
                await client.all(*names, timeout=0.2).acquire()
            took = world.now() - began
            assert refused.value.waited == pytest.approx(took, abs=0.05)
            return took

        await world.measured(attempt, at_least=0.2, at_most=0.2 + 2 * CLOSE)
        await world.until(lambda: is_free(world, names[0]))

    async def test_the_whole_waits_for_what_is_taken(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(2)]
        lease = await world.client().lock(names[1]).acquire(timeout=0)
        waits = world.begin(client.all(*names).acquire)
        await world.until(lambda: is_taken(world, names[0]))
        await lease.release()
        leases = await waits.result()
        assert leases[names[1]].fence > lease.fence
        await leases.release()
        await leases.release()
        assert [await holds(world, name) for name in names] == [None, None]

    async def test_two_who_want_the_same_in_another_order_do_not_wait_for_each_other(self, world: World) -> None:
        names, inside, most = [world.name() for _ in range(3)], 0, 0

        async def work(client: Client, order: list[str]) -> None:
            nonlocal inside, most
            for _ in range(3):
                async with client.all(*order):
                    inside += 1
                    most = max(most, inside)
                    await world.sleep(0.001)
                    inside -= 1

        orders = (names, names[::-1], [names[1], names[0], names[2]])
        await world.together(*(functools.partial(work, world.client(), order) for order in orders))
        assert most == 1

    async def test_the_loss_of_one_is_the_loss_of_the_whole(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(2)]
        leases = await client.all(*names, on_lost="flag").acquire(timeout=0)
        assert not leases.lost
        await world.lose(leases[names[0]])
        with pytest.raises(LeaseLost):
            await leases.renew()
        assert leases.lost.is_set()
        assert leases.lost_reason is not None
        assert await leases.lost.wait(STEP)
        with pytest.raises(LeaseLost):
            leases.check()
        assert leases.expires_in() == 0
        with pytest.raises(LeaseLost):
            await leases.release()
        assert [await holds(world, name) for name in names] == [None, None]

    async def test_a_block_that_lost_one_says_so_and_gives_the_others_back(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(3)]
        with pytest.raises(LeaseLost) as lost:
            async with client.all(*names, on_lost="flag") as leases:
                await world.lose(leases[names[1]])
        assert lost.value.name in names  # locks of one session are all lost with it
        assert [await holds(world, name) for name in names] == [None] * 3

    async def test_the_error_of_the_body_comes_out(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(2)]
        for error in (ValueError("broken"), KeyboardInterrupt()):
            with pytest.raises(type(error)) as raised:
                async with client.all(*names):
                    raise error
            assert raised.value is error
            assert [await holds(world, name) for name in names] == [None, None]

    async def test_a_wait_for_a_loss_ends_with_the_whole(self, world: World) -> None:
        leases = await world.client().all(world.name(), world.name()).acquire(timeout=0)
        assert not await leases.lost.wait(0.01)
        waits = world.begin(leases.lost.wait)
        await leases.release()
        assert not await waits.result()

    async def test_what_was_taken_before_the_store_failed_is_given_back(self, world: World) -> None:
        for fault in (refuse, drop_reply):
            client, names = world.client(), [world.name() for _ in range(2)]
            async with client.lock(names[0], ttl=3.0):
                pass  # so that the next grant is the second of the two below, and has nothing to prepare
            world.wire(client).spoil("grant", passing)
            for _ in range(20):
                world.wire(client).spoil("grant", fault)
            with pytest.raises(StoreUnavailable):
                await client.all(*names, ttl=3.0).acquire(timeout=0.1)
            world.wire(client).heal()
            for name in names:
                await world.until(lambda name=name: is_free(world, name))  # type: ignore[misc]

    async def test_ctrl_c_in_the_middle_gives_all_back(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(3)]
        world.wire(client).spoil("grant", passing)
        world.wire(client).spoil("grant", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await client.all(*names).acquire()
        for name in names:
            await world.until(lambda name=name: is_free(world, name))  # type: ignore[misc]

    async def test_what_cannot_be_right_is_refused_before_anything_is_sent(self, world: World) -> None:
        client, name = world.client(), world.name()
        for locks in ((), (name, name), (name, client.lock(name)), (name, 3), (world.client().lock(name),), ("",)):
            with pytest.raises(Misuse):
                client.all(*locks)
        async with client.lock(name):
            before = world.asks("grant")
            with pytest.raises(Misuse, match="already holds"):
                await client.all("a name before it", name).acquire()
            assert world.asks("grant") == before

    @needs(Ability.SHARED)
    async def test_a_whole_may_have_parts(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(2)]
        other = await world.client().lock(names[0], shared=True).acquire(timeout=0)
        async with client.all(client.lock(names[0], shared=True), names[1]) as leases:
            assert len((await world.store.show(names[0], STEP)).holders) == 2
            assert leases[names[0]].fence > other.fence
        assert await holds(world, names[1]) is None
        await other.release()

    async def test_cancelling_the_whole_leaves_nothing_behind(self, world: World, asyncio_only: None) -> None:
        client, theirs = world.client(), world.client()
        for delay in moments():
            names = [world.name() for _ in range(3)]
            task = asyncio.ensure_future(client.all(*names).acquire())
            if isinstance(delay, int):
                for _ in range(delay):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                await task.result().release()  # it was quicker than the cancel
            async with theirs.all(*names, timeout=1.0):
                pass

    async def test_a_body_is_cancelled_when_one_is_lost(self, world: World, asyncio_only: None) -> None:
        client, names = world.client(), [world.name() for _ in range(3)]
        came_back = False
        ttl = max(0.3, world.store.shortest_ttl)
        with pytest.raises(LeaseLost) as lost:
            async with client.all(*names, ttl=ttl) as leases:
                await world.lose(leases[names[1]])
                await asyncio.sleep(STEP)
                came_back = True
        assert not came_back
        assert lost.value.name in names  # locks of one session are all lost with it
        assert [await holds(world, name) for name in names] == [None] * 3
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def passing(step: Any, within: float) -> object:
    """No fault."""
    return await step()


async def interrupted(step: Any, within: float) -> object:
    """Carry it out, and be interrupted before its answer is seen."""
    await step()
    raise KeyboardInterrupt


async def is_free(world: World, name: str) -> bool:
    """Whether nobody holds *name*."""
    return await holds(world, name) is None


async def is_taken(world: World, name: str) -> bool:
    """Whether somebody holds *name*."""
    return not await is_free(world, name)
