"""How long a lease lasts: exactly its ttl, by the store's clock, from the moment of the grant or the renewal."""

from __future__ import annotations

import functools
from datetime import timedelta

import pytest

from dibs.core.budgets import valid_until
from dibs.core.checks import LONGEST_TIME, Seconds, checked_length
from dibs.errors import LossReason, Misuse, NotSupported
from dibs.share import SHARED
from dibs.stores.guarantees import Ability
from dibs.stores.store import Busy, Grant
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.waiting import waiters_are
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
        lease = await client.lock(name, ttl=60, timeout=STEP).acquire()
        assert lease.ttl >= 60
        assert 50 < lease.expires_in() <= lease.ttl
        holder = (await client.show(name)).holder
        assert holder is not None
        assert holder.expires_in is None or 50 < holder.expires_in < lease.ttl + 0.01

    async def test_what_the_last_answered_ask_promises_the_store_counts_too(self, world: World) -> None:
        """Also if it was granted at an earlier ask with the same token: nobody may know when that was carried out."""
        ttl = max(2.0, world.store.shortest_ttl)
        cannot = world.store.guarantees.cannot
        for share in [None, *([SHARED] if Ability.SHARED not in cannot else [])]:
            ask = world.ask(world.name(), ttl=ttl, share=share)
            await world.store.grant(ask, STEP)
            await world.sleep(0.05 * ttl)
            sent_at = world.now()
            assert isinstance(await world.store.grant(ask, STEP), Grant)
            await lasts_until(world, ask.name, valid_until(sent_at, ttl))
            if share is None and Ability.RECORDS not in cannot:
                await world.sleep(0.05 * ttl)
                sent_at = world.now()
                assert isinstance(await world.records.grant_unless_recorded(ask, 0, STEP), Grant)
                await lasts_until(world, ask.name, valid_until(sent_at, ttl))

    async def test_the_budget_of_a_wait_is_not_the_length_of_the_lease(self, world: World) -> None:
        client = world.client()
        for timeout in (0, world.kept, 2 * world.kept, None):
            lease = await client.lock(world.name(), ttl=60).acquire(timeout=timeout)
            assert 50 < lease.expires_in() <= lease.ttl

    async def test_a_lease_may_have_the_longest_ttl(self, world: World) -> None:
        """It is granted, renewed, shown, handed over and given back, or the server is asked and says what it allows."""
        for ttl in (world.store.longest_ttl, world.store.longest_ttl / 10):
            await lives_through_all(world, ttl, shared=False)
            if Ability.SHARED not in world.store.guarantees.cannot:
                await lives_through_all(world, ttl, shared=True)

    async def test_a_ttl_beyond_the_limits_is_refused_with_the_limit(self, world: World) -> None:
        client, store = world.client(), world.store
        for ttl, limit in (
            (store.longest_ttl * 1.01, store.longest_ttl),
            (store.shortest_ttl * 0.9, store.shortest_ttl),
        ):
            with pytest.raises(Misuse) as refused:
                client.lock(world.name(), ttl=ttl)
            assert f"{limit:g} seconds" in str(refused.value) or "ten years" in str(refused.value)
        assert world.asks("grant") == 0

    async def test_a_wait_may_be_as_long_as_a_ttl_and_so_may_a_hold(self, world: World) -> None:
        name = world.name()
        held = await world.client().lock(name).acquire(timeout=0)
        waiter = world.begin(lambda: world.client().lock(name, timeout=LONGEST_TIME, max_hold=LONGEST_TIME).acquire())
        await world.until(lambda: waiters_are(world, name, 1))
        await held.release()
        lease = await waiter.result()
        await lease.renew()
        await lease.release()

    @needs(Ability.RECORDS)
    async def test_a_record_may_be_kept_for_as_long_as_a_ttl_may_be(self, world: World) -> None:
        claim = await world.crashed(world.name(), 30)
        assert await world.records.finish(claim, b"done", LONGEST_TIME, STEP) is None
        record = await world.records.record(claim.name, STEP)
        assert record is not None
        assert record.expires_in > LONGEST_TIME - 60

    @needs(Ability.EXPIRY)
    async def test_an_ask_repeated_after_its_lease_had_ended_is_a_new_grant(self, world: World) -> None:
        """The fence of then is not given out again, since another may have had the name meanwhile."""
        ask = world.ask(world.name(), ttl=world.short)
        first = await world.store.grant(ask, STEP)
        assert isinstance(first, Grant)
        waits = world.ask(ask.name, queue=True)
        assert isinstance(await world.store.grant(waits, STEP), Busy)
        await world.until(lambda: is_free(world, ask.name), within=world.short + LATE + STEP)
        again = await world.store.grant(ask, STEP)
        assert isinstance(again, Busy) or again.fence > first.fence

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


async def lives_through_all(world: World, ttl: float, *, shared: bool) -> None:
    """Take a lease of *ttl* through the steps of its life."""
    client, name = world.client(), world.name()
    problem, lease = "", None
    try:
        lease = await client.lock(name, ttl=ttl, shared=shared).acquire(timeout=0)
    except NotSupported as refused:
        problem = str(refused)
    if lease is None:
        assert "lower the ttl" in problem
        return
    assert lease.expires_in() > ttl * 0.98
    await lease.renew()
    holder = (await client.show(name)).holder
    assert holder is not None
    assert holder.expires_in is None or ttl - 60 < holder.expires_in < ttl * 1.01
    assert await client.holders(name) != []
    if Ability.HANDOVER not in world.store.guarantees.cannot:
        lease = await world.client().resume(lease.to_str())
        await lease.renew()
    await lease.release()
    assert (await client.show(name)).holder is None


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


async def lasts_until(world: World, name: str, moment: float) -> None:
    """Assert that the store does not end the grant of *name* before *moment*."""
    holder = (await world.store.show(name, STEP)).holder
    if holder is None:
        assert world.now() >= moment, "the grant is over"
    elif holder.expires_in is not None:
        assert world.now() + holder.expires_in >= moment, "the store ends it before its holder does"
