"""How long a lease lasts: exactly its ttl, by the store's clock, from the moment of the grant or the renewal."""

from __future__ import annotations

import functools
from datetime import timedelta

from dibs.core.checks import Seconds, checked_length
from dibs.errors import LossReason
from dibs.stores.guarantees import Ability
from dibs.stores.store import Grant
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.world import STEP, World

CLOSE = 0.05
"""Seconds by which a moment may be missed, where nothing else keeps the machine busy."""

LATE = 3.0
"""Seconds by which the end of a ttl may be missed by a store that declares that it is not punctual."""


class Expiry(Kind):
    """The ttl is the one that was asked for."""

    @needs(Ability.EXPIRY)
    async def test_a_lease_that_nobody_renews_ends_after_its_ttl(self, world: World) -> None:
        """Every form of a ttl, and then a second holder: not before the end, and not much after it."""
        shortest = world.store.shortest_ttl
        forms: list[Seconds] = [shortest, shortest * 1.9, timedelta(seconds=2 * shortest), max(1, round(shortest))]
        await world.together(*(functools.partial(ends_in_time, world, form) for form in forms))

    async def test_the_whole_ttl_is_granted(self, world: World) -> None:
        """Also after a wait, and whatever the budget of that wait was."""
        client, name = world.client(), world.name()
        await world.crashed(name, world.short)
        lease = await client.lock(name, ttl=30, timeout=STEP).acquire()
        assert lease.ttl >= 30
        assert 29 < lease.expires_in() <= lease.ttl
        holder = (await client.show(name)).holder
        assert holder is not None
        assert holder.expires_in is None or 29 < holder.expires_in < lease.ttl + 0.01

    async def test_the_budget_of_a_wait_is_not_the_length_of_the_lease(self, world: World) -> None:
        client = world.client()
        for timeout in (0, 0.2, 2, None):
            lease = await client.lock(world.name(), ttl=20).acquire(timeout=timeout)
            assert 19 < lease.expires_in() <= lease.ttl

    @needs(Ability.EXPIRY)
    async def test_a_renewal_counts_its_ttl_from_the_renewal(self, world: World) -> None:
        held = await world.crashed(world.name(), world.short)
        renewed_at = world.now()
        assert await world.store.renew([held._replace(ttl=2 * world.short)], STEP) == [None]
        await world.until(lambda: taken(world, held.name))
        assert world.now() - renewed_at > 2 * world.short - CLOSE

    @needs(Ability.EXPIRY)
    async def test_a_renewal_never_shortens_a_lease(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        assert await world.store.renew([held._replace(ttl=world.short)], STEP) == [None]
        holder = (await world.store.show(held.name, STEP)).holder
        assert holder is not None
        assert holder.expires_in is None or holder.expires_in > 20

    @needs(Ability.EXPIRY)
    async def test_a_lease_that_ended_is_lost_for_whoever_held_it(self, world: World) -> None:
        ended = await world.crashed(world.name(), world.short)
        await world.until(lambda: taken(world, ended.name))
        assert (await world.store.renew([ended], STEP))[0] in {LossReason.EXPIRED, LossReason.TAKEN}
        assert await world.store.release(ended.name, ended.token, STEP) in {LossReason.EXPIRED, LossReason.TAKEN}

    @needs(Ability.PUNCTUAL)
    async def test_an_ended_lease_is_not_shown_as_held(self, world: World) -> None:
        ended = await world.crashed(world.name(), world.short)
        await world.sleep(ended.ttl + 0.01)
        assert (await world.store.show(ended.name, STEP)).holder is None
        assert ended.name not in [holder.name for holder in await world.store.holders("", STEP)]


async def ends_in_time(world: World, form: Seconds) -> None:
    """A grant of *form* keeps a second one away for exactly so long."""
    ttl = checked_length(form, "ttl")

    async def attempt() -> float:
        name, asked_at = world.name(), world.now()
        held = await world.crashed(name, ttl)
        assert held.ttl >= ttl
        await world.until(lambda: taken(world, name))
        return world.now() - asked_at - (held.ttl - ttl)

    late = LATE if Ability.PUNCTUAL in world.store.guarantees.cannot else CLOSE
    await world.measured(attempt, at_least=ttl, at_most=ttl + late)


async def taken(world: World, name: str) -> bool:
    """Take *name* if that is possible now."""
    return isinstance(await world.store.grant(world.ask(name), STEP), Grant)
