"""Electing a leader: one leads, it is told in time, and its place stays taken until its work has stopped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.core.election.election import Election
from dibs.core.election.term import Term
from dibs.errors import LeaseLost, LossReason, NotAcquired
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.watched import refuse
from dibs.testing.contract.world import PATIENCE, STEP, World


class Electing(Kind):
    """An election holds what its words say, over this store."""

    async def test_one_candidate_leads_and_everybody_knows_who(self, world: World) -> None:
        name = world.name()
        ours, theirs = candidate(world, name, "ours"), candidate(world, name, "theirs")
        assert await theirs.leader() is None
        async with ours.lead() as term:
            leader = await theirs.leader()
            assert leader is not None
            assert (leader.candidate, leader.term) == ("ours", term.fence)
            with pytest.raises(NotAcquired):
                await theirs.lead(timeout=0).__aenter__()
            assert 0 < ours.is_leader() < 15
            assert theirs.is_leader() == 0.0
        assert ours.is_leader() == 0.0
        assert await theirs.leader() is None

    async def test_a_later_term_has_a_higher_number(self, world: World) -> None:
        name, terms = world.name(), list[int]()
        for who in ("a", "b", "a"):
            async with candidate(world, name, who).lead(timeout=STEP) as term:
                terms.append(term.fence)
        assert terms == sorted(set(terms))

    async def test_a_leader_whose_place_the_store_gave_away_is_told(self, world: World) -> None:
        """A session that expired at the server, a key that was deleted, an operator who broke the lock."""
        election = candidate(world, world.name(), ttl=0.4)
        with pytest.raises(LeaseLost):
            async with election.lead() as term:
                await world.lose(term._lease)  # in async code the body may be cancelled here
                await until_told(term)
        assert election.is_leader() == 0.0

    async def test_a_leader_that_cannot_renew_stops_while_its_lease_is_valid(self, world: World) -> None:
        client, name = world.client(), world.name()
        # Half a second of it is left then, also on a busy machine.
        election = client.election(name, ttl=max(1.5, world.store.shortest_ttl))
        left = 0.0
        with pytest.raises(LeaseLost) as lost:
            async with election.lead() as term:
                world.wire(client).spoil_every("renew", refuse)
                try:
                    await until_told(term)
                finally:
                    left = term._lease.expires_in()
                    world.wire(client).heal()
        assert left > 0
        assert lost.value.reason is LossReason.EXPIRED
        assert await is_free(world, name)

    async def test_a_place_stays_taken_until_the_work_has_stopped(self, world: World) -> None:
        name = world.name()
        ours, theirs = candidate(world, name, ttl=world.kept), candidate(world, name)
        with pytest.raises(LeaseLost) as lost:
            async with ours.lead() as term:
                ours.stop()
                renewed = world.asks("renew")
                await go_on_in_spite(world, lambda: world.asks("renew") > renewed)
                assert await holds(world, name) == term.fence
                with pytest.raises(NotAcquired):
                    await theirs.lead(timeout=0).__aenter__()
        assert lost.value.reason is LossReason.STEPPED_DOWN
        async with theirs.lead(timeout=STEP) as after:
            assert after.fence > term.fence

    async def test_a_watch_tells_each_leader_and_that_the_place_is_vacant(self, world: World) -> None:
        name = world.name()
        ours, leaders = candidate(world, name, "ours"), candidate(world, name).watch(every=0.01)
        assert await anext(leaders) is None
        async with ours.lead() as term:
            told = await anext(leaders)
            assert told is not None
            assert (told.candidate, told.term) == ("ours", term.fence)
        assert await anext(leaders) is None

    async def test_a_candidate_that_runs_leads_again_and_again_until_it_is_stopped(self, world: World) -> None:
        client, name, terms = world.client(), world.name(), list[int]()
        election = client.election(name, retry=0.01)

        async def work(term: Term) -> None:
            terms.append(term.fence)
            if len(terms) == 3:
                election.stop()

        await world.begin(lambda: election.run(work)).result()
        assert terms == sorted(set(terms))
        assert len(terms) == 3
        assert await is_free(world, name)


def candidate(world: World, name: str, who: str = "", ttl: float = 15.0) -> Election:
    """One more candidate, as another process would have it."""
    return world.client().election(name, ttl=max(ttl, world.store.shortest_ttl), candidate=who)


async def until_told(term: Term) -> None:
    """Work until the end of the term: cancelled, or told by the flag where nothing is cancelled."""
    assert await term.lost.wait(PATIENCE), "the leader was not told"


async def go_on_in_spite(world: World, until: Callable[[], bool]) -> None:
    """Work that has been told to stop, and goes on *until* so much has happened."""
    end = world.now() + PATIENCE
    while not until():
        assert world.now() < end, f"this did not come within {PATIENCE:g} s: {until}"
        try:
            await world.sleep(0.01)
        except BaseException:  # noqa: BLE001, S112 - it ignores its cancel: that is what this is about
            continue
