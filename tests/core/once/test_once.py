"""Once per slot on the memory store, in every runtime: blocks, decorators, and what must not be lost or done twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dibs
from core.worlds import CoreTests, Untouchable
from dibs.core.client import Client
from dibs.core.once.history import FAILED, OK
from dibs.core.once.once import Run
from dibs.errors import LeaseLost, Misuse, NotSupported, Skipped, SkipReason
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.guarantees import Ability
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.slotted import once, skipped
from dibs.testing.contract.watched import drop_reply, refuse
from dibs.testing.contract.world import PATIENCE, World


class TestOnce(CoreTests):
    async def test_a_decorated_function_is_called_once_and_says_quietly_why_not(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "dibs")
        name = world.name()

        @world.client().once(name, slot="monday")
        async def report(day: str, *, run: Run | None = None) -> str:
            """Make it."""
            assert run is not None
            return f"{day} {run.slot} {run.attempt}"

        assert await report("now") == "now monday 1"
        assert await report("again") is None
        assert (report.__name__, report.__doc__) == ("report", "Make it.")
        [told] = [record for record in caplog.records if "is skipped" in record.message]
        assert "for slot monday, already ran: at" in told.message
        assert told.levelno == logging.INFO

    async def test_only_async_functions_are_decorated(self, world: World) -> None:
        """And no generator, whose body runs after the call."""
        decorate: Any = world.client().once(world.name(), slot="a" * 1000)

        def plain() -> None:
            """Not awaited by anybody."""

        with pytest.raises(Misuse, match="is not an async def function"):
            decorate(plain)

        @decorate  # type: ignore[untyped-decorator]
        async def report() -> int:
            return 1

        assert await report() == 1

    async def test_a_skip_of_something_inside_is_not_taken_for_our_own(self, world: World) -> None:
        inner = world.name()
        async with once(world, inner):
            pass

        @world.client().once(world.name(), slot="monday")
        async def outer() -> None:
            async with once(world, inner):
                pass

        with pytest.raises(Skipped) as raised:
            await outer()
        assert raised.value.name == inner

    async def test_a_slot_that_began_too_long_ago_is_not_due(self, world: World) -> None:
        client, name = world.client(), world.name()
        slot = client.once(name, every=86_400, late=0.001)
        world.wire(client).spoil_every("time", at_noon)
        with pytest.raises(Skipped, match=r"not due: it began 43200 s ago.* the next one begins at 2023-11-15") as late:
            await slot.__aenter__()
        assert late.value.reason is SkipReason.NOT_DUE
        assert world.asks("grant_unless_recorded") == 0

    async def test_who_stands_by_begins_no_slot_that_is_over_or_too_late(self, world: World) -> None:
        """The one who ran it crashed, so only the clock is against it; and the name is given back."""
        for every, late in ((0.2, None), (43_200, 0.2)):
            client, name = world.client(), world.name()
            world.wire(client).spoil_every("time", at_noon)
            await world.crashed(name, world.short + 0.3)
            with pytest.raises(Skipped, match=r"before the name was free|more than late=0\.2") as raised:
                await client.once(name, every=every, late=late, timeout=None).__aenter__()
            assert raised.value.reason is SkipReason.NOT_DUE
            assert await is_free(world, name)

    async def test_min_hold_keeps_the_next_slot_away(self, world: World) -> None:
        client, name = world.client(), world.name()
        async with client.once(name, slot="monday", min_hold=600):
            pass
        with pytest.raises(Skipped) as raised:
            async with client.once(name, slot="tuesday"):
                pytest.fail("the body was run")
        assert raised.value.reason is SkipReason.NOT_DUE
        assert await is_free(world, name)

    async def test_an_end_whose_answer_was_lost_is_told_again(self, world: World) -> None:
        client, name = world.client(), world.name()
        for fault in (drop_reply, refuse):
            world.wire(client).spoil("finish", fault)
            async with client.once(name, slot=fault.__name__):
                pass
        assert [past.outcome for past in await once(world, name).history()] == [OK, OK]
        assert await is_free(world, name)

    async def test_a_block_that_went_well_is_not_failed_by_a_store_that_is_gone(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        client, name = world.client(), world.name()
        async with client.once(name, slot="monday", ttl=0.2):
            world.wire(client).spoil_every("finish", refuse)
        assert any("may not be on record" in record.message for record in caplog.records)

    async def test_a_lost_lease_comes_out_and_the_slot_may_be_tried_again(self, world: World) -> None:
        client, name = world.client(), world.name()
        with pytest.raises(LeaseLost):
            async with client.once(name, slot="monday", ttl=0.3) as run:
                await world.lose(run.lease)
                assert await run.lease.lost.wait(PATIENCE)
        assert (await skipped(world, name)).reason is SkipReason.GIVEN_UP
        async with once(world, name, retries=1) as run:
            assert run.attempt == 2

    async def test_what_stops_a_run_is_a_failure(self, world: World) -> None:
        name = world.name()
        for error in (KeyboardInterrupt(), SystemExit(3)):
            with pytest.raises(type(error)):
                async with once(world, name, retries=9):
                    raise error
        assert [past.outcome for past in await once(world, name).history()] == [FAILED, FAILED]
        assert await is_free(world, name)

    async def test_an_error_whose_text_cannot_be_made_comes_out_as_it_is(self, world: World) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise ZeroDivisionError

        client, name, key = world.client(), world.name(), world.name()
        for block in (client.once(name, slot="monday"), client.idempotent(key)):
            with pytest.raises(Mute):
                async with block:
                    raise Mute
        assert await is_free(world, name)
        assert await is_free(world, key)
        [past] = await once(world, name).history()
        assert (past.outcome, past.detail) == (FAILED, "Mute: (its text cannot be made)")

    async def test_an_error_of_the_body_has_the_loss_as_a_note(self, world: World) -> None:
        with pytest.raises(ValueError, match="mine") as raised:
            async with world.client().once(world.name(), slot="a", on_lost="flag") as run:
                await world.lose(run.lease)
                raise ValueError("mine")
        assert any("was lost" in note for note in raised.value.__notes__)

    async def test_one_object_is_used_for_block_after_block_and_not_for_two_at_once(self, world: World) -> None:
        description = world.client().once(world.name(), slot="a", retries=2)
        with pytest.raises(Misuse, match="left without having been entered"):
            await description.__aexit__(None, None, None)
        async with description:
            with pytest.raises(Misuse, match="is in use"):
                await description.__aenter__()
        with pytest.raises(Skipped):
            await description.__aenter__()

    async def test_other_data_under_the_name_is_left_alone(self, world: World) -> None:
        name = world.name()
        held = await world.crashed(name, 30)
        await world.records.finish(held, b"of somebody else", 60, PATIENCE)
        with pytest.raises(Misuse, match="take another name"):
            await once(world, name).__aenter__()
        found = await world.records.record(name, PATIENCE)
        assert found is not None
        assert found.data == b"of somebody else"

    async def test_a_cancel_at_any_moment_leaves_nothing_held(self, world: World, asyncio_only: None) -> None:
        for turns in range(25):
            name = world.name()

            async def block(name: str = name) -> None:
                async with once(world, name):
                    await asyncio.sleep(0)

            task = asyncio.ensure_future(block())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await world.until(lambda name=name: is_free(world, name))  # type: ignore[misc]


async def at_noon(step: Callable[[], Awaitable[Any]], within: float) -> Any:
    return 19_675 * 86_400 + 43_200.0  # of 14 November 2023


def test_the_blocking_decorator_and_block(tmp_path: Any) -> None:
    with dibs.connect(f"memory:{tmp_path.name}") as client:

        @client.once("report", every=3600)
        def report(*, run: dibs.Run | None = None) -> str:
            assert run is not None
            run.lease.check()
            return run.slot

        async def awaited() -> None:
            """Belongs to dibs.aio."""

        def generated() -> Any:
            yield

        for wrong, complaint in ((awaited, "is async"), (generated, "is a generator")):
            with pytest.raises(dibs.Misuse, match=complaint):
                client.once("report", every=3600)(wrong)
        first = report()
        assert first is not None
        assert report() is None or report() is None  # the hour may change meanwhile, once
        with pytest.raises(dibs.Skipped), client.once("report", slot=first):
            pytest.fail("the body was run")
        assert client.once("report", slot="x").history()[0].slot == first

        @client.once("all reports", slot="monday")
        def all_reports() -> None:
            with client.once("report", slot=first):
                pytest.fail("the body was run")

        with pytest.raises(dibs.Skipped, match="'report'"):  # of something inside, and not our own
            all_reports()


def test_a_store_without_records_refuses_at_once() -> None:
    class Forgetful(Untouchable):
        guarantees = Untouchable.guarantees._replace(cannot={Ability.RECORDS: "it forgets"})

    with pytest.raises(NotSupported, match="keeps no records: it forgets"):
        Client(Forgetful(), ThreadRuntime()).once("report", slot="a")
