"""What happens to a lease while its holder works: renewals, in few requests, and the ways in which it is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dibs.core.lease import Lease
from dibs.errors import LeaseLost, LossReason
from dibs.stores.guarantees import Ability
from dibs.testing.contract.expiry import taken
from dibs.testing.contract.ownership import holds
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.watched import Fault, drop_request, hang, refuse
from dibs.testing.contract.world import STEP, World

MANY = 40
"""Leases of one client."""


class Keeping(Kind):
    """A lease is renewed for as long as it is held, and its holder is told when it is lost."""

    async def test_a_lease_is_kept_beyond_its_ttl_also_over_a_failed_renewal(self, world: World) -> None:
        client, name = world.client(), world.name()
        ttl = world.kept
        for fault in (refuse, drop_request):
            world.wire(client).spoil("renew", fault)
        lease = await client.lock(name, ttl=ttl).acquire(timeout=0)
        await world.sleep(1.3 * lease.ttl)
        assert not lease.lost
        assert await holds(world, name) == lease.fence
        assert world.asks("renew") >= 3

    async def test_many_leases_are_renewed_in_few_requests(self, world: World) -> None:
        client = world.client()
        ttl = world.kept
        leases = [await client.lock(world.name(), ttl=ttl).acquire(timeout=0) for _ in range(MANY)]
        began = world.now()
        await world.until(lambda: all_renewed_at(leases, began + 0.6 * ttl))
        assert world.asks("renew") <= MANY / 4
        assert not any(lease.lost for lease in leases)

    @needs(Ability.EXPIRY)
    async def test_who_cannot_reach_the_store_is_told_before_another_can_hold_the_lock(self, world: World) -> None:
        for fault in (refuse, hang(world.runtime)):
            client, name = world.client(), world.name()
            world.wire(client).spoil_every("renew", fault)
            lease = await client.lock(name, ttl=world.short).acquire(timeout=0)
            world.begin(lambda lease=lease: lease.lost.wait(STEP))  # type: ignore[misc]
            while not await taken(world, name):
                still = lease.lost.is_set()
                await world.sleep(0.002)
            assert lease.lost, f"somebody else was granted the lock, and lost.is_set() was {still}"
            assert lease.lost_reason is LossReason.EXPIRED

    @needs(Ability.EXPIRY)
    async def test_a_lease_that_was_lost_stays_lost(self, world: World) -> None:
        client, name = world.client(), world.name()
        world.wire(client).spoil_every("renew", refuse)
        lease = await client.lock(name, ttl=world.short).acquire(timeout=0)
        assert await lease.lost.wait(STEP)
        world.wire(client).heal()
        with pytest.raises(LeaseLost):
            await lease.renew()
        with pytest.raises(LeaseLost):
            lease.check()
        assert lease.expires_in() == 0
        await world.until(lambda: taken(world, name))

    async def test_who_finds_its_grant_gone_is_told_and_takes_nothing_back(self, world: World) -> None:
        """Within one renewal: the record was deleted behind the holder."""
        client, name = world.client(), world.name()
        lease = await client.lock(name, ttl=world.kept).acquire(timeout=0)
        reason = await world.lose(lease)
        assert await lease.lost.wait(lease.ttl)
        assert lease.lost_reason in {reason, LossReason.EXPIRED}
        assert await holds(world, name) is None

    async def test_max_hold_ends_a_lease_and_says_so(self, world: World) -> None:
        client, name = world.client(), world.name()
        ttl = world.kept
        longest = 1.2 * ttl
        lease = await client.lock(name, ttl=ttl, max_hold=longest).acquire(timeout=0)
        assert lease.expires_in() <= longest
        began = world.now()
        assert await lease.lost.wait(STEP)
        assert world.now() - began < longest + ttl
        assert lease.lost_reason is LossReason.MAX_HOLD
        await world.until(lambda: taken(world, name))

    async def test_a_renewal_in_flight_does_not_outlive_the_release(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.lock(name).acquire(timeout=0)
        world.wire(client).spoil("renew", late(world, 0.05))
        renewal = world.begin(lease.renew)
        await world.until(lambda: has_asked(world, "renew"))
        await lease.release()
        await renewal.result()
        assert await holds(world, name) is None
        assert not lease.lost

    async def test_closing_a_client_gives_back_all_it_holds(self, world: World) -> None:
        client, names = world.client(), [world.name() for _ in range(3)]
        leases = [await client.lock(name).acquire(timeout=0) for name in names]
        await client.close()
        assert not any(lease.lost for lease in leases)
        assert [await holds(world, name) for name in names] == [None] * 3
        await client.close()


def late(world: World, seconds: float) -> Fault:
    """A fault that carries the step out, later."""

    async def step_later(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        await world.sleep(seconds)
        return await step()

    return step_later


async def has_asked(world: World, step: str) -> bool:
    """Whether a client has asked for *step*."""
    return world.asks(step) > 0


async def all_renewed_at(leases: list[Lease], moment: float) -> bool:
    """Whether each lease now ends later than one that was granted at *moment* would not."""
    return all(lease.lost._deadline > moment + 0.95 * lease.ttl for lease in leases)
