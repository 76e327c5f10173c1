"""Handing a lease to another process: as text, without a moment in which nobody holds it."""

from __future__ import annotations

import pytest

from dibs.errors import LeaseLost, Misuse
from dibs.stores.guarantees import Ability
from dibs.testing.contract.expiry import taken
from dibs.testing.contract.ownership import holds
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.world import STEP, World


class HandOver(Kind):
    """Who gets the text gets the lease."""

    @needs(Ability.HANDOVER)
    async def test_a_detached_lease_is_resumed_elsewhere(self, world: World) -> None:
        ours, theirs, name = world.client(), world.client(), world.name()
        lease = await ours.lock(name, note="first half").acquire(timeout=0)
        text = await lease.detach()
        await ours.close()
        assert await holds(world, name) == lease.fence
        resumed = await theirs.resume(text)
        assert (resumed.name, resumed.token, resumed.fence, resumed.ttl, resumed.note) == (
            name,
            lease.token,
            lease.fence,
            lease.ttl,
            "first half",
        )
        await resumed.renew()
        assert await world.client().lock(name).try_acquire() is None
        await resumed.release()
        assert await holds(world, name) is None

    @needs(Ability.HANDOVER)
    async def test_who_resumed_a_lease_is_shown_as_its_holder(self, world: World) -> None:
        lease = await world.client().lock(world.name(), note="first half").acquire(timeout=0)
        before = (await world.client().show(lease.name)).holder
        await world.client().resume(await lease.detach())
        after = (await world.client().show(lease.name)).holder
        assert before is not None
        assert after is not None
        assert (after.pid, after.note, after.fence) == (world.runtime.pid(), "first half", lease.fence)
        assert after.since == before.since

    @needs(Ability.HANDOVER)
    async def test_a_renewal_by_its_text_leaves_the_lease_to_its_holder(self, world: World) -> None:
        ours, theirs = world.client(), world.client()
        lease = await ours.lock(world.name()).acquire(timeout=0)
        text, before = lease.to_str(), (await ours.show(lease.name)).holder
        await theirs.renew(text)
        after = (await ours.show(lease.name)).holder
        assert before is not None
        assert after is not None
        assert after._replace(expires_in=None) == before._replace(expires_in=None)
        await theirs.close()
        lease.check()
        assert await holds(world, lease.name) == lease.fence
        await lease.release()
        with pytest.raises(LeaseLost):
            await world.client().renew(text)

    @needs(Ability.HANDOVER)
    async def test_a_detached_lease_is_no_longer_ours_to_use(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await lease.detach()
        with pytest.raises(Misuse, match="was detached"):
            lease.check()
        with pytest.raises(Misuse, match="was detached"):
            await lease.renew()
        assert not lease.lost
        assert await holds(world, lease.name) == lease.fence

    @needs(Ability.HANDOVER)
    async def test_releasing_what_was_detached_frees_nothing(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await lease.detach()
        await lease.release()
        assert await holds(world, lease.name) == lease.fence

    @needs(Ability.EXPIRY)
    @needs(Ability.HANDOVER)
    async def test_a_detached_lease_ends_after_its_ttl(self, world: World) -> None:
        lease = await world.client().lock(world.name(), ttl=world.short).acquire(timeout=0)
        await lease.detach()
        detached_at = world.now()
        await world.until(lambda: taken(world, lease.name))
        assert world.now() - detached_at < lease.ttl + STEP

    @needs(Ability.HANDOVER)
    async def test_a_lease_that_is_over_cannot_be_resumed(self, world: World) -> None:
        name, client = world.name(), world.client()
        released = await client.lock(name).acquire(timeout=0)
        text = released.to_str()
        await released.release()
        with pytest.raises(LeaseLost):
            await world.client().resume(text)
        assert await holds(world, name) is None
        lease = await client.lock(name).acquire(timeout=0)
        with pytest.raises(LeaseLost):
            await world.client().resume(text)
        assert await holds(world, name) == lease.fence
