"""A lease: held until it is given up or lost, each for good."""

from __future__ import annotations

from typing import Any

import pytest

from core.worlds import CoreTests
from dibs.errors import LeaseLost, LossReason, Misuse, NotSupported, StoreUnavailable
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.watched import refuse
from dibs.testing.contract.world import STEP, World


class TestLease(CoreTests):
    async def test_a_store_without_conditions_says_what_to_take_instead(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        with pytest.raises(NotSupported, match=r"memory has no condition .* see dibs\.guards"):
            lease.compare()
        await lease.release()
        with pytest.raises(Misuse, match="was released"):
            lease.compare()

    async def test_a_lease_says_what_it_is(self, world: World) -> None:
        name = world.name()
        lease = await world.client().lock(name, ttl=20, note="charge").acquire(timeout=0)
        assert (lease.name, lease.ttl, lease.note) == (name, 20, "charge")
        assert len(lease.token) == 32
        assert repr(lease).startswith(f"<Lease {name!r} fence={lease.fence} held, expires_in=")
        assert lease.token not in repr(lease)
        await lease.release()
        assert repr(lease) == f"<Lease {name!r} fence={lease.fence} released>"

    async def test_a_lost_lease_says_so_in_every_way(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await world.client().evict(lease.name, fence=lease.fence)
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert lease.lost
        assert lease.lost.is_set()
        assert await lease.lost.wait(0)
        assert lease.expires_in() == 0
        assert "evicted" in repr(lease)
        assert "evicted" in repr(lease.lost)
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            async with lease:
                pytest.fail("a lost lease let a body run")

    async def test_a_released_lease_is_of_no_use_any_more(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await lease.release()
        assert lease.expires_in() == 0
        assert not lease.lost
        assert lease.lost_reason is None
        for use in (lease.renew, lease.detach, lease.__aenter__):
            with pytest.raises(Misuse, match="was released; acquire again"):
                await use()
        await lease.release()

    async def test_release_after_a_loss_says_so_each_time(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await world.client().evict(lease.name, fence=lease.fence)
        for _ in range(3):
            with pytest.raises(LeaseLost):
                await lease.release()

    async def test_a_lost_lease_is_given_back_once_although_the_client_has_the_next_one(self, world: World) -> None:
        """The store may still get a late ask of the lost one, and has to know that nobody wants it any more."""
        client = world.client()
        lost = await client.lock(world.name()).acquire(timeout=0)
        await world.client().evict(lost.name, fence=lost.fence)
        with pytest.raises(LeaseLost):
            await lost.renew()
        held = await world.begin(client.lock(lost.name).acquire).result()
        for _ in range(2):
            with pytest.raises(LeaseLost):
                await lost.release()
        await world.until(lambda: asked(world, "release", 1))
        await held.release()
        assert world.asks("release") == 2

    async def test_a_renewal_that_failed_can_be_tried_again(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        world.wire(client).spoil("renew", refuse)
        with pytest.raises(StoreUnavailable):
            await lease.renew()
        assert not lease.lost
        await lease.renew()

    async def test_a_lease_that_could_not_be_detached_is_still_kept(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        world.wire(client).spoil("detach", refuse)
        with pytest.raises(StoreUnavailable):
            await lease.detach()
        lease.check()
        await lease.release()
        assert await is_free(world, lease.name)

    async def test_a_lease_that_is_lost_while_it_is_detached_is_lost(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)

        async def lost_meanwhile(step: Any, within: float) -> None:
            await step()
            lease.lost._happen(LossReason.EVICTED)

        world.wire(client).spoil("detach", lost_meanwhile)
        with pytest.raises(LeaseLost, match="evicted"):
            await lease.detach()
        with pytest.raises(LeaseLost, match="evicted"):
            lease.check()

    async def test_waiting_for_a_loss_ends_with_the_release(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        waiter = world.begin(lease.lost.wait)
        await world.sleep(0.02)
        assert not waiter.over
        await lease.release()
        assert await waiter.result() is False

    async def test_waiting_for_a_loss_ends_with_its_timeout(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)

        async def attempt() -> float:
            began = world.now()
            assert not await lease.lost.wait(0.1)
            return world.now() - began

        await world.measured(attempt, at_least=0.1, at_most=0.15)

    async def test_waiting_for_a_loss_ends_with_the_loss(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        waiter = world.begin(lease.lost.wait)
        await world.client().evict(lease.name, fence=lease.fence)
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert await waiter.result() is True

    async def test_a_release_that_finds_the_lock_gone_says_lost_once_and_for_all(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await world.store.release(lease.name, lease.token, STEP)
        theirs = await world.client().lock(lease.name).acquire(timeout=0)
        for _ in range(2):
            with pytest.raises(LeaseLost, match="taken"):
                await lease.release()
        assert await holds(world, lease.name) == theirs.fence


async def asked(world: World, step: str, times: int) -> bool:
    return world.asks(step) == times
