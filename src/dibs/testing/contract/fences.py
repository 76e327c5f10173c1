"""Fences: every grant of a name has a higher one than all before it, whatever ended those."""

from __future__ import annotations

from dibs.stores.guarantees import Ability
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.world import STEP, World

EXACT = 2**53
"""Below it every integer is exact as a floating-point number too, as JSON and Lua have them."""


class Fences(Kind):
    """A later grant has a higher fence."""

    async def test_fences_rise_from_release_to_release(self, world: World) -> None:
        clients, name, fences = [world.client(), world.client()], world.name(), list[int]()
        for turn in range(20):
            lease = await clients[turn % 2].lock(name).acquire(timeout=STEP)
            fences.append(lease.fence)
            await lease.release()
        assert fences == sorted(set(fences))
        assert all(0 < fence < EXACT for fence in fences)

    @needs(Ability.EXPIRY)
    async def test_a_fence_is_higher_than_that_of_a_lease_that_ended(self, world: World) -> None:
        ended = await world.crashed(world.name(), world.store.shortest_ttl)
        lease = await world.client().lock(ended.name).acquire(timeout=STEP)
        assert lease.fence > ended.fence

    async def test_a_fence_is_higher_than_that_of_a_grant_that_was_evicted(self, world: World) -> None:
        client, evicted = world.client(), await world.crashed(world.name(), 30)
        assert await client.evict(evicted.name, fence=evicted.fence)
        assert (await client.lock(evicted.name).acquire(timeout=STEP)).fence > evicted.fence

    async def test_fences_rise_over_the_end_of_all_clients(self, world: World) -> None:
        name, fences = world.name(), list[int]()
        for _ in range(3):
            async with world.client() as client, client.lock(name) as lease:
                fences.append(lease.fence)
        assert fences == sorted(set(fences))

    @needs(Ability.MEMORY)
    async def test_the_last_fence_outlives_its_grant(self, world: World) -> None:
        client = world.client()
        async with client.lock(world.name()) as lease:
            assert (await client.show(lease.name)).fence == lease.fence
        assert (await client.show(lease.name)).fence == lease.fence

    async def test_a_refused_ask_and_a_renewal_use_up_no_fence(self, world: World) -> None:
        name, client = world.name(), world.client()
        lease = await client.lock(name).acquire(timeout=0)
        await world.client().lock(name).try_acquire()
        await lease.renew()
        assert (await client.show(name)).fence == lease.fence
