"""Looking at locks and breaking them: holders, show, evict."""

from __future__ import annotations

import pytest

from dibs.errors import LeaseLost, LossReason
from dibs.holder import LockState
from dibs.testing.contract.ownership import holds
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.world import STEP, World


class Looking(Kind):
    """Everybody can see who holds what, and break it by its fence."""

    async def test_whoever_asks_sees_who_holds_a_lock(self, world: World) -> None:
        lock = world.client().lock(world.name(), note="nightly charge")
        async with lock as lease:
            [holder] = await world.client().holders(lock.name)
            assert (holder.name, holder.fence, holder.note) == (lock.name, lease.fence, "nightly charge")
            assert holder.pid == world.runtime.pid()
            assert holder.host
            assert holder.user
            assert holder.expires_in is None or 0 < holder.expires_in < lease.ttl + 0.01
            assert (await world.client().show(lock.name)).holder is not None
        assert await world.client().holders(lock.name) == []

    async def test_times_are_by_one_clock(self, world: World) -> None:
        """The store's: so who came first can be told, whatever the clocks of the holders say."""
        client, names = world.client(), [world.name(), world.name()]
        for name in names:
            await client.lock(name).acquire(timeout=0)
            await world.sleep(0.01)
        first, second = [(await client.show(name)).holder for name in names]
        assert first is not None
        assert second is not None
        assert 0.009 < second.since - first.since < 60

    async def test_a_name_that_was_never_locked_shows_nothing(self, world: World) -> None:
        name = world.name()
        assert await world.client().show(name) == LockState(name, 0, None, (), None)

    async def test_looking_locks_nothing(self, world: World) -> None:
        client, name = world.client(), world.name()
        await client.show(name)
        await client.holders(name)
        await client.evict(name, fence=1)
        assert await client.show(name) == LockState(name, 0, None, (), None)

    async def test_an_evicted_holder_is_told_at_its_next_renewal(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        assert await world.client().evict(lease.name, fence=lease.fence, reason="it hangs")
        assert await holds(world, lease.name) is None
        with pytest.raises(LeaseLost) as lost:
            await lease.renew()
        assert lost.value.reason is lease.lost_reason is LossReason.EVICTED
        evicted = (await world.client().show(lease.name)).evicted
        assert evicted is not None
        assert (evicted.fence, evicted.reason) == (lease.fence, "it hangs")
        assert str(world.runtime.pid()) in evicted.by
        assert evicted.at > 0

    async def test_a_release_after_an_eviction_says_so(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await world.client().evict(lease.name, fence=lease.fence)
        with pytest.raises(LeaseLost):
            await lease.release()
        assert lease.lost_reason is LossReason.EVICTED

    async def test_only_the_grant_that_was_looked_at_is_evicted(self, world: World) -> None:
        name, client = world.name(), world.client()
        old = await client.lock(name).acquire(timeout=0)
        await old.release()
        lease = await client.lock(name).acquire(timeout=0)
        for fence in (old.fence, lease.fence + 1, 1, 2**63 - 1):
            assert not await client.evict(name, fence=fence)
        await lease.renew()
        state = await client.show(name)
        assert state.evicted is None
        assert state.holder is not None

    async def test_nobody_is_evicted_twice(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        assert await client.evict(held.name, fence=held.fence, reason="first")
        assert not await client.evict(held.name, fence=held.fence, reason="second")
        evicted = (await client.show(held.name)).evicted
        assert evicted is not None
        assert evicted.reason == "first"

    async def test_the_next_in_line_gets_what_was_evicted(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        waiter = world.begin(client.lock(held.name).acquire)
        await world.until(lambda: waiters_are(world, held.name, 1))
        assert await world.client().evict(held.name, fence=held.fence)
        assert (await waiter.result()).fence > held.fence

    async def test_an_evicted_token_gets_no_renewal_while_another_holds(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        await client.evict(held.name, fence=held.fence)
        lease = await client.lock(held.name).acquire(timeout=STEP)
        assert await world.store.renew([held], STEP) == [LossReason.EVICTED]
        assert await holds(world, held.name) == lease.fence
