"""Who may give back or extend a grant: whoever has its token, and nobody else, whatever has happened since."""

from __future__ import annotations

import pytest

from dibs.errors import LeaseLost, Misuse, NotAcquired
from dibs.share import Share
from dibs.stores.guarantees import Ability
from dibs.stores.store import Busy, Claim, Grant
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.watched import refuse
from dibs.testing.contract.world import STEP, World


class Ownership(Kind):
    """Ownership is the token alone."""

    async def test_while_one_holds_it_nobody_else_gets_it(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        lease = await world.client().lock(name, note="the first").acquire(timeout=0)
        assert await theirs.lock(name).try_acquire() is None
        with pytest.raises(NotAcquired) as refused:
            await theirs.lock(name).acquire(timeout=0)
        assert refused.value.holder is not None
        assert (refused.value.holder.fence, refused.value.holder.note) == (lease.fence, "the first")
        assert refused.value.holder.pid == world.runtime.pid()

    async def test_a_released_lock_can_be_had_at_once(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        lease = await world.client().lock(name).acquire(timeout=0)
        await lease.release()
        assert await theirs.lock(name).try_acquire() is not None

    async def test_a_grant_asked_for_again_with_its_token_is_the_same_grant(self, world: World) -> None:
        ask = world.ask(world.name())
        first = await world.store.grant(ask, STEP)
        again = await world.store.grant(ask, STEP)
        assert isinstance(first, Grant)
        assert isinstance(again, Grant)
        assert first.fence == again.fence
        assert await world.store.release(ask.name, ask.token, STEP) is None
        assert (await world.store.show(ask.name, STEP)).holder is None

    async def test_a_token_is_compared_whole(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        for token in (held.token[:-1], held.token + "0", held.token.upper() + "X", " " + held.token, "%", "*", "_"):
            assert await world.store.release(held.name, token, STEP) is not None
            assert await world.store.renew([held._replace(token=token)], STEP) != [None]
            assert isinstance(await world.store.grant(world.ask(held.name)._replace(token=token), STEP), Busy)
        assert await world.store.renew([held], STEP) == [None]

    async def test_releasing_what_was_never_acquired_changes_nothing(self, world: World) -> None:
        held, never = await world.crashed(world.name(), 30), world.name()
        assert await world.store.release(held.name, world.runtime.token(), STEP) is not None
        assert await world.store.release(never, world.runtime.token(), STEP) is not None
        holder = (await world.store.show(held.name, STEP)).holder
        assert holder is not None
        assert holder.fence == held.fence
        assert (await world.store.show(never, STEP)).fence == 0

    async def test_releasing_twice_leaves_the_next_holder_alone(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        first = await world.client().lock(name).acquire(timeout=0)
        await first.release()
        second = await theirs.lock(name).acquire(timeout=0)
        await first.release()
        await second.renew()
        assert await holds(world, name) == second.fence

    async def test_a_late_release_leaves_the_next_holder_alone(self, world: World) -> None:
        name = world.name()
        late = await world.crashed(name, world.short)
        lease = await world.client().lock(name).acquire(timeout=STEP)
        assert await world.store.release(name, late.token, STEP) is not None
        await lease.renew()
        assert await holds(world, name) == lease.fence

    async def test_a_late_renewal_leaves_the_next_holder_as_it_is(self, world: World) -> None:
        name = world.name()
        late = await world.crashed(name, world.short)
        lease = await world.client().lock(name, ttl=20).acquire(timeout=STEP)
        [reason] = await world.store.renew([late._replace(ttl=1000.0)], STEP)
        assert reason is not None
        holder = (await world.store.show(name, STEP)).holder
        assert holder is not None
        assert holder.fence == lease.fence
        assert holder.expires_in is None or holder.expires_in < 20.01

    @needs(Ability.EXPIRY)
    async def test_one_lock_object_never_mixes_up_its_leases(self, world: World) -> None:
        """The first user of a shared lock object comes back late, when the second has the lock."""
        client = world.client()
        lock = client.lock(world.name(), ttl=world.short)
        world.wire(client).spoil_every("renew", refuse)
        first = await world.begin(lambda: lock.acquire(timeout=0)).result()
        await first.lost.wait(STEP)
        world.wire(client).heal()
        second = await lock.acquire(timeout=STEP)
        with pytest.raises(LeaseLost):
            await first.release()
        assert await holds(world, lock.name) == second.fence
        await second.release()

    async def test_a_refused_try_leaves_the_hold_of_its_own_client_alone(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.lock(name).acquire(timeout=0)
        assert await world.begin(client.lock(name).try_acquire).result() is None
        await lease.renew()
        await lease.release()
        assert await holds(world, name) is None

    async def test_a_lease_may_be_released_by_another_thread_or_task(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.lock(name).acquire(timeout=0)
        await world.begin(lease.release).result()
        assert await holds(world, name) is None

    async def test_acquiring_again_what_one_holds_is_misuse_and_not_a_wait(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.lock(name).acquire(timeout=0)
        with pytest.raises(Misuse, match=f"already holds '{name}'"):
            await client.lock(name).acquire()
        await lease.release()
        await (await client.lock(name).acquire(timeout=0)).release()

    async def test_a_renewal_of_what_was_released_creates_nothing(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        await world.store.release(held.name, held.token, STEP)
        assert await world.store.renew([held], STEP) != [None]
        assert await holds(world, held.name) is None

    async def test_a_renewal_of_what_was_never_granted_creates_nothing(self, world: World) -> None:
        claim = Claim(world.name(), world.runtime.token(), 1, 30.0)
        assert await world.store.renew([claim], STEP) != [None]
        assert await holds(world, claim.name) is None
        assert isinstance(await world.store.grant(world.ask(claim.name), STEP), Grant)

    @needs(Ability.EXPIRY)
    async def test_a_renewal_of_what_has_ended_does_not_revive_it(self, world: World) -> None:
        ended = await world.crashed(world.name(), world.short)
        await world.until(lambda: is_free(world, ended.name))
        assert await world.store.renew([ended], STEP) != [None]
        assert await holds(world, ended.name) is None

    @needs(Ability.EXPIRY)
    async def test_a_claim_does_not_hold_by_a_later_grant_of_its_token(self, world: World) -> None:
        await an_old_claim_does_not_hold(world, None)

    async def test_renewals_are_answered_in_the_order_of_the_question(self, world: World) -> None:
        held = [await world.crashed(world.name(), 30) for _ in range(4)]
        await world.store.release(held[1].name, held[1].token, STEP)
        wrong = held[2]._replace(token=world.runtime.token())
        answers = await world.store.renew([held[0], held[1], wrong, held[3], held[2]], STEP)
        assert [answer is None for answer in answers] == [True, False, False, True, True]

    async def test_nothing_to_renew_is_answered_by_nothing(self, world: World) -> None:
        assert await world.store.renew([], STEP) == []

    @needs(Ability.EXPIRY)
    async def test_renewals_of_one_batch_each_get_their_own_ttl(self, world: World) -> None:
        held = [await world.crashed(world.name(), 10) for _ in range(2)]
        await world.store.renew([held[0]._replace(ttl=20.0), held[1]._replace(ttl=40.0)], STEP)
        for claim, ttl in zip(held, (20, 40), strict=True):
            holder = (await world.store.show(claim.name, STEP)).holder
            assert holder is not None
            assert holder.expires_in is None or round(holder.expires_in, -1) == ttl


async def holds(world: World, name: str) -> int | None:
    """The fence of who holds *name*, by the store."""
    holder = (await world.store.show(name, STEP)).holder
    return None if holder is None else holder.fence


async def is_free(world: World, name: str) -> bool:
    """Whether nobody holds *name*."""
    return await holds(world, name) is None


async def an_old_claim_does_not_hold(world: World, share: Share | None) -> None:
    """An ask that the network delivers late grants its token anew, when the first grant is over."""
    ask = world.ask(world.name(), ttl=world.short, share=share)
    first = await world.store.grant(ask, STEP)
    assert isinstance(first, Grant)
    await world.until(lambda: is_free(world, ask.name))
    again = await world.store.grant(ask._replace(ttl=30.0), STEP)
    assert isinstance(again, Grant)
    assert again.fence > first.fence
    assert await world.store.renew([Claim(ask.name, ask.token, first.fence, 30.0)], STEP) != [None]
    assert await holds(world, ask.name) == again.fence
