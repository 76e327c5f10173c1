"""Once per slot: one start for all who call, remembered with its outcome, and started again as often as allowed."""

from __future__ import annotations

import pytest

from dibs.core.once.history import CRASHED, FAILED, OK, RUNNING
from dibs.core.once.once import Once, Run
from dibs.errors import Skipped, SkipReason, StoreUnavailable
from dibs.stores.guarantees import Ability
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.watched import drop_reply, refuse
from dibs.testing.contract.world import STEP, World


class Slotted(Kind):
    """A slot is claimed, begun and ended in the store, by its clock."""

    @needs(Ability.RECORDS)
    async def test_of_all_who_call_one_runs_the_slot(self, world: World) -> None:
        name, ran = world.name(), list[str]()

        async def call() -> str:
            try:
                async with once(world, name, timeout=None) as run:
                    ran.append(run.slot)
                    await world.sleep(0.01)
                    return "ran"
            except Skipped as skipped:
                return str(skipped.reason)

        told = await world.together(*[call] * 4)
        assert ran == ["monday"]
        assert sorted(told) == [SkipReason.ALREADY_RAN] * 3 + ["ran"]

    @needs(Ability.RECORDS)
    async def test_who_skips_is_told_who_runs_and_who_ran(self, world: World) -> None:
        name = world.name()
        async with once(world, name) as run:
            assert (run.slot, run.attempt, run.lease.name) == ("monday", 1, name)
            running = await skipped(world, name)
            assert running.reason is SkipReason.RUNNING
            assert f"pid {world.runtime.pid()}" in running.detail
            [now] = await once(world, name).history()
            assert (now.outcome, now.took) == (RUNNING, None)
        done = await skipped(world, name)
        assert done.reason is SkipReason.ALREADY_RAN
        assert f"pid {world.runtime.pid()}" in done.detail
        [past] = await once(world, name).history()
        assert (past.slot, past.outcome, past.pid) == ("monday", OK, world.runtime.pid())
        assert past.took is not None
        assert await is_free(world, name)

    @needs(Ability.RECORDS)
    async def test_the_next_slot_is_run_again(self, world: World) -> None:
        name = world.name()
        for slot in ("monday", "tuesday"):
            async with once(world, name, slot) as run:
                assert run.slot == slot
        assert (await skipped(world, name)).reason is SkipReason.ALREADY_RAN
        assert [past.slot for past in await once(world, name).history()] == ["monday", "tuesday"]

    @needs(Ability.RECORDS)
    async def test_one_that_fails_is_started_again_as_often_as_allowed(self, world: World) -> None:
        name = world.name()
        for attempt in (1, 2):
            with pytest.raises(ValueError, match="broken"):
                async with once(world, name, retries=1) as run:
                    assert run.attempt == attempt
                    raise ValueError("broken")
        given_up = await skipped(world, name, retries=1)
        assert given_up.reason is SkipReason.GIVEN_UP
        assert "failed (ValueError: broken)" in given_up.detail
        async with once(world, name, retries=2) as run:
            assert run.attempt == 3
        assert [past.outcome for past in await once(world, name).history()] == [FAILED, FAILED, OK]

    @needs(Ability.RECORDS)
    async def test_one_that_crashed_is_not_started_again_unless_that_is_asked_for(self, world: World) -> None:
        name = world.name()
        await crash(world, name)
        given_up = await skipped(world, name)
        assert given_up.reason is SkipReason.GIVEN_UP
        assert "crashed" in given_up.detail
        assert await is_free(world, name)
        async with once(world, name, retries=1) as run:
            assert run.attempt == 2
        assert [past.outcome for past in await once(world, name).history()] == [CRASHED, OK]

    @needs(Ability.RECORDS)
    async def test_who_stands_by_takes_over_from_one_that_crashed(self, world: World) -> None:
        name = world.name()
        await crash(world, name, until_free=False)
        async with once(world, name, timeout=STEP, retries=1) as run:
            assert run.attempt == 2

    @needs(Ability.RECORDS)
    async def test_who_stands_by_skips_when_the_run_has_ended_well(self, world: World) -> None:
        name = world.name()

        async def stand_by() -> SkipReason:
            return (await skipped(world, name, timeout=None, retries=3)).reason

        async with once(world, name):
            waiting = world.begin(stand_by)
            await world.until(lambda: waiters_are(world, name, 1))
        assert await waiting.result() is SkipReason.ALREADY_RAN
        assert await is_free(world, name)

    @needs(Ability.RECORDS)
    async def test_a_start_whose_answer_was_lost_is_one_start(self, world: World) -> None:
        client, name = world.client(), world.name()
        world.wire(client).spoil("remember", drop_reply)
        async with client.once(name, slot="monday"):
            pass
        assert [past.outcome for past in await once(world, name).history()] == [OK]

    @needs(Ability.RECORDS)
    async def test_what_cannot_be_written_down_is_not_started(self, world: World) -> None:
        client, name = world.client(), world.name()
        world.wire(client).spoil_every("remember", refuse)
        with pytest.raises(StoreUnavailable):
            await client.once(name, slot="monday", ttl=max(0.2, world.store.shortest_ttl)).__aenter__()
        world.wire(client).heal()
        await world.until(lambda: is_free(world, name))
        async with once(world, name) as run:
            assert run.attempt == 1

    @needs(Ability.RECORDS)
    async def test_the_slot_is_that_of_the_stores_clock(self, world: World) -> None:
        name = world.name()
        before = await world.records.time(name, STEP)
        async with world.client().once(name, every=3600) as run:
            assert await holds(world, name) == run.lease.fence
        [past] = await once(world, name).history()
        after = await world.records.time(name, STEP)
        assert past.at is not None
        assert before - 3600 < past.at <= after
        assert past.at % 3600 == 0
        assert before <= past.started <= after


def once(world: World, name: str, slot: str = "monday", *, timeout: float | None = 0, retries: int = 0) -> Once:
    """One more caller, as another machine would have it."""
    return world.client().once(name, slot=slot, timeout=timeout, retries=retries)


async def skipped(world: World, name: str, *, timeout: float | None = 0, retries: int = 0) -> Skipped:
    """Call for a slot that is not to be run; why it is not."""
    with pytest.raises(Skipped) as raised:
        async with once(world, name, timeout=timeout, retries=retries):
            pytest.fail("the body was run")
    return raised.value


async def crash(world: World, name: str, *, until_free: bool = True) -> Run:
    """A run whose process is gone: nobody renews it, and nobody ends it."""
    client = world.client()
    world.wire(client).spoil_every("renew", refuse)
    run = await client.once(name, slot="monday", ttl=world.short, on_lost="flag").__aenter__()
    if until_free:
        await world.until(lambda: is_free(world, name))
    return run
