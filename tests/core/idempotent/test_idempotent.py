"""Idempotent calls: done once, replayed after, tried again after a failure, and refused to whoever comes late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import dibs
from core.worlds import CoreTests, untouchable
from dibs.core.client import Client
from dibs.core.idempotent.call import Call
from dibs.core.lock import Lock
from dibs.core.record import finish
from dibs.errors import KeyReused, LeaseLost, Misuse, NotAcquired, NotSupported, OutcomeUnknown, StoreUnavailable
from dibs.stores.guarantees import Ability
from dibs.stores.record_store import LONGEST_RECORD
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.watched import drop_reply, drop_request, refuse
from dibs.testing.contract.world import STEP, World
from servers.process import until


class Broken(Exception):
    """What the work fails with."""


class TestIdempotent(CoreTests):
    async def test_work_is_done_once_and_then_replayed(self, world: World) -> None:
        """Also by another client, and whatever JSON can say comes back."""
        key, result = world.name(), {"status": "paid", "amounts": [1, 2.5, None], "ü": "☃"}
        assert await outcome(world.client(), key, result) == (False, result)
        assert await outcome(world.client(), key, "another") == (True, result)
        assert await is_free(world, key)

    async def test_the_first_and_the_replay_cost_as_few_requests_as_can_be(self, world: World) -> None:
        client, key = world.client(), world.name()
        await outcome(client, key, 1)
        await outcome(client, key, 1)
        assert dict(world.wire(client).asked) == {"grant_unless_recorded": 2, "finish": 1}

    async def test_a_block_that_says_nothing_is_done_and_has_no_result(self, world: World) -> None:
        client, key = world.client(), world.name()
        async with client.idempotent(key) as call:
            assert not call.replayed
            with pytest.raises(Misuse, match="has no result yet"):
                _ = call.result
        assert await outcome(client, key, "more") == (True, None)

    async def test_while_somebody_is_at_it_others_are_told_so(self, world: World) -> None:
        first, second, key = world.client(), world.client(), world.name()
        async with first.idempotent(key, note="charge") as call:
            for timeout in (0, 0.05):
                with pytest.raises(NotAcquired) as busy:
                    await outcome(second, key, 1, timeout=timeout)
                assert busy.value.holder is not None
                assert busy.value.holder.fence == call.fence
                assert busy.value.holder.note == "charge"

    async def test_while_somebody_is_at_it_another_fingerprint_is_told_apart(self, world: World) -> None:
        """The lease carries in its note what the call is about; nobody else is kept from waiting."""
        first, second, key = world.client(), world.client(), world.name()
        for note in ("", "charge"):
            name = f"{key} {note}"
            async with first.idempotent(name, note=note, fingerprint={"amount": 1}) as call:
                for timeout in (0, 0.05):
                    with pytest.raises(KeyReused, match="take a new key") as reused:
                        await outcome(second, name, 1, fingerprint={"amount": 2}, timeout=timeout)
                    assert reused.value.fence == call.fence
                    for same in ({"amount": 1}, None):
                        with pytest.raises(NotAcquired):
                            await outcome(second, name, 1, fingerprint=same, timeout=timeout)
        async with first.lock(key, note="charge [about nothing]"):
            with pytest.raises(NotAcquired):
                await outcome(second, key, 1, fingerprint={"amount": 2})

    async def test_a_note_that_fills_its_room_leaves_none_for_what_the_call_is_about(self, world: World) -> None:
        client, key, note = world.client(), world.name(), "ü" * 490
        async with client.idempotent(key, note=note, fingerprint="a") as call:
            assert call.lease.note == note
            with pytest.raises(NotAcquired):
                await outcome(world.client(), key, 1, fingerprint="b")

    async def test_who_waits_gets_the_result_of_the_one_before(self, world: World) -> None:
        first, second, key = world.client(), world.client(), world.name()
        async with first.idempotent(key) as call:
            waiting = world.begin(lambda: outcome(second, key, "second", timeout=None))
            await world.until(lambda: someone_waits(first, key))
            call.done("first")
        assert await waiting.result() == (True, "first")

    async def test_of_many_at_once_one_does_the_work(self, world: World) -> None:
        key = world.name()
        found = await world.together(*[lambda: outcome(world.client(), key, "done", timeout=None)] * 12)
        assert sorted(found) == [(False, "done"), *[(True, "done")] * 11]

    async def test_another_fingerprint_under_the_same_key_is_an_error_of_its_own(self, world: World) -> None:
        client, key = world.client(), world.name()
        about: list[Any] = [{"amount": 1, "to": "ü"}, "text", b"bytes", 17, ["a", None]]
        for number, fingerprint in enumerate(about):
            name = f"{key} {number}"
            await outcome(client, name, 1, fingerprint=fingerprint)
            assert await outcome(client, name, 2, fingerprint=fingerprint) == (True, 1)
            assert await outcome(client, name, 2) == (True, 1), "no fingerprint is not compared"
            with pytest.raises(KeyReused, match="take a new key for a new call") as error:
                await outcome(client, name, 2, fingerprint={"amount": 2})
            assert error.value.name == name
        assert await outcome(client, f"{key} 0", 2, fingerprint={"to": "ü", "amount": 1}) == (True, 1), "any order"

    async def test_a_failure_lets_the_next_try_and_tells_it(self, world: World) -> None:
        client, key = world.client(), world.name()
        for attempt in (1, 2):
            with pytest.raises(Broken, match="no funds"):
                async with client.idempotent(key, fingerprint="a") as call:
                    assert call.attempt == attempt
                    assert call.last_error == (None if attempt == 1 else "Broken: no funds")
                    raise Broken("no funds")
            assert await is_free(world, key)
        with pytest.raises(KeyReused):
            await outcome(client, key, 1, fingerprint="b")
        async with client.idempotent(key, fingerprint="a") as call:
            assert call.attempt == 3
            assert not call.replayed
        async with client.idempotent(key) as call:
            assert (call.replayed, call.attempt, call.last_error) == (True, 3, None)

    async def test_a_retry_after_a_failure_is_one_statement_more(self, world: World) -> None:
        client, key = world.client(), world.name()
        with pytest.raises(Broken):
            await outcome(client, key, Broken())
        world.wire(client).asked.clear()
        assert await outcome(client, key, 1) == (False, 1)
        assert dict(world.wire(client).asked) == {"grant_unless_recorded": 2, "finish": 1}

    async def test_an_error_after_done_does_not_undo_it(self, world: World) -> None:
        client, key = world.client(), world.name()
        with pytest.raises(Broken):
            async with client.idempotent(key) as call:
                call.done("paid")
                raise Broken
        assert await outcome(client, key, "again") == (True, "paid")

    async def test_a_result_that_cannot_be_kept_counts_as_done(self, world: World) -> None:
        """The work has been done, so it must not be done again; whoever asks for the result is told why."""
        client = world.client()
        for result, why in ((object(), "cannot be written as JSON"), ("x" * LONGEST_RECORD, "is the most")):
            key = world.name()
            with pytest.raises(Misuse):
                await outcome(client, key, result)
            async with client.idempotent(key) as call:
                assert call.replayed
                with pytest.raises(Misuse, match=why):
                    _ = call.result

    async def test_results_are_bytes_as_you_say(self, world: World) -> None:
        client, key = world.client(), world.name()
        for expected in (False, True):
            async with client.idempotent(key, dump=bytes.fromhex, load=bytes.hex) as call:
                assert call.replayed is expected
                if not call.replayed:
                    call.done("00ff0a")
            assert call.result == "00ff0a"
        with pytest.raises(Misuse, match="has to return bytes"):
            async with client.idempotent(world.name(), dump=str) as call:  # type: ignore[arg-type]
                call.done(1)

    async def test_a_block_that_says_nothing_is_done_whatever_dump_can_say(self, world: World) -> None:
        client, key = world.client(), world.name()
        for expected in (False, True):
            async with client.idempotent(key, dump=bytes.fromhex, load=bytes.hex) as call:
                assert call.replayed is expected

    async def test_a_record_is_kept_for_its_time(self, world: World) -> None:
        client, key = world.client(), world.name()
        await outcome(client, key, 1, keep=0.1)
        await world.until(lambda: forgotten(client, key))
        assert await outcome(client, key, 2) == (False, 2)

    async def test_the_lease_is_renewed_while_the_work_is_done(self, world: World) -> None:
        client, key = world.client(), world.name()
        async with client.idempotent(key, ttl=world.short) as call:
            await world.sleep(1.5 * world.short)
            call.lease.check()
        assert (await outcome(client, key, 1))[0]

    async def test_a_finisher_that_wakes_up_late_is_refused(self, world: World) -> None:
        """Another has taken over meanwhile: what that one did is what everybody gets."""
        late, other, key = world.client(), world.client(), world.name()
        world.wire(late).spoil_every("renew", refuse)
        with pytest.raises(LeaseLost) as lost:
            async with late.idempotent(key, ttl=world.short, on_lost="flag") as call:
                assert await outcome(other, key, "other", timeout=None) == (False, "other")
                await call.lease.lost.wait(STEP)
        assert "does it again" in lost.value.__notes__[0]
        assert await outcome(late, key, "late") == (True, "other")

    async def test_done_is_refused_when_the_lease_is_over(self, world: World) -> None:
        client, key = world.client(), world.name()
        with pytest.raises(LeaseLost):
            async with client.idempotent(key, on_lost="flag") as call:
                await client.evict(key, fence=call.fence)
                with pytest.raises(LeaseLost):
                    await call.lease.renew()
                call.done("late")
        assert await client.record(key) is None

    async def test_answers_that_are_lost_do_not_do_the_work_twice(self, world: World) -> None:
        client = world.client()
        for step in ("grant_unless_recorded", "finish"):
            for fault in (drop_reply, drop_request):
                key = world.name()
                world.wire(client).spoil(step, fault)
                try:
                    assert await outcome(client, key, 1) == (False, 1)
                except OutcomeUnknown:
                    assert step == "grant_unless_recorded", "nothing was begun"
                    await world.until(lambda key=key: is_free(world, key))  # type: ignore[misc]
                    assert await outcome(client, key, 1) == (False, 1)
                assert await outcome(client, key, 2) == (True, 1)

    async def test_what_could_not_be_recorded_is_said(self, world: World) -> None:
        client, key = world.client(), world.name()
        world.wire(client).spoil_every("finish", refuse)
        with pytest.raises(StoreUnavailable) as unsure:
            await outcome(client, key, 1, ttl=world.short)
        assert "the next call with this key does it again" in unsure.value.__notes__[0]
        with pytest.raises(Broken):  # nor does a failure wait for a store that is away
            async with client.idempotent(world.name()) as call:
                raise Broken
        world.wire(client).heal()
        await world.until(lambda: is_free(world, call.key))

    async def test_an_error_of_the_work_comes_out_although_its_lease_is_lost(self, world: World) -> None:
        client, key = world.client(), world.name()
        with pytest.raises(Broken) as error:
            async with client.idempotent(key, on_lost="flag") as call:
                await client.evict(key, fence=call.fence)
                raise Broken
        assert "was not recorded" in error.value.__notes__[0]

    async def test_a_record_of_something_else_is_not_taken_for_a_result(self, world: World) -> None:
        client = world.client()
        for data in (b"", b"3", b"{}", b'{"idempotent":1}\n', b'{"idempotent":2,"result":0}\n', b"\xff"):
            key = world.name()
            await finish(client._context, await held(client.lock(key)), data, 60)
            with pytest.raises(Misuse, match="was not left by an idempotent call"):
                await outcome(client, key, 1)

    async def test_the_block_is_for_one_use(self, world: World) -> None:
        client = world.client()
        block = client.idempotent(world.name())
        with pytest.raises(Misuse, match="left without having been entered"):
            await block.__aexit__(None, None, None)
        async with block:
            pass
        with pytest.raises(Misuse, match="make a new one"):
            await block.__aenter__()

    async def test_a_decorated_function_is_done_once_for_its_arguments(self, world: World) -> None:
        client, key, charged = world.client(), world.name(), list[tuple[int, int]]()

        @client.idempotent(key + ":{invoice}", fingerprint="{amount}")
        async def charge(invoice: int, amount: int, *, call: Call) -> str:
            assert call.key == f"{key}:{invoice}"
            charged.append((invoice, amount))
            return f"receipt {len(charged)}"

        assert [await charge(1, 10), await charge(2, 10), await charge(1, amount=10)] == [  # type: ignore[call-arg]
            *("receipt 1", "receipt 2", "receipt 1")
        ]
        with pytest.raises(KeyReused):
            await charge(1, 11)  # type: ignore[call-arg]
        assert charged == [(1, 10), (2, 10)]

    @pytest.mark.parametrize(
        ("key", "fingerprint", "first", "second"),
        [
            (":{a:s}:{b}", "same", ("7", "8"), ("7", 8)),
            (":{a}", None, (7, 0), ("7", 0)),
            (":{a}", None, (True, 0), ("True", 0)),
            ("", "{a}|{b}", ("a|b", "c"), ("a", "b|c")),
        ],
    )
    async def test_other_values_with_the_same_text_are_another_call(
        self, world: World, key: str, fingerprint: str | None, first: tuple[Any, Any], second: tuple[Any, Any]
    ) -> None:
        @world.client().idempotent(world.name() + key, fingerprint=fingerprint)
        async def work(a: Any, b: Any) -> list[Any]:
            return [a, b]

        assert [await work(*first), await work(*first)] == [[*first]] * 2
        with pytest.raises(KeyReused):
            await work(*second)

    async def test_of_a_value_with_a_format_only_its_text_counts(self, world: World) -> None:
        @world.client().idempotent(world.name() + ":{day:%Y-%m-%d}:{size:.{digits}f}")
        async def report(day: datetime, size: float, digits: int = 1) -> int:
            return day.hour

        assert await report(datetime(2024, 5, 1, 7, tzinfo=UTC), 0.51) == 7
        assert await report(datetime(2024, 5, 1, 8, tzinfo=UTC), 0.52) == 7

    async def test_a_function_may_say_itself_what_its_result_is(self, world: World) -> None:
        client, key = world.client(), world.name()

        @client.idempotent(key)
        async def work(*, call: Call) -> str:
            call.done("kept")
            return "returned"

        assert [await work(), await work()] == ["kept", "kept"]  # type: ignore[call-arg]

    async def test_a_cancel_counts_as_a_failure(self, world: World, asyncio_only: None) -> None:
        client, key = world.client(), world.name()
        with pytest.raises(asyncio.CancelledError):
            await outcome(client, key, asyncio.CancelledError())
        async with client.idempotent(key) as call:
            assert (call.attempt, call.last_error) == (2, "CancelledError")

    async def test_a_generator_that_is_closed_in_the_block_gives_back_what_is_not_done(
        self, world: World, asyncio_only: None
    ) -> None:
        """What is done is not given back without a record, which cannot be written any more: it ends by its ttl."""
        client, key = world.client(), world.name()

        async def work(done: bool) -> None:
            async with client.idempotent(key, ttl=world.short) as call:
                if done:
                    call.done(1)
                await asyncio.sleep(STEP)

        for done in (False, True):
            coroutine = work(done)
            coroutine.send(None)  # into the block: a step of the memory store does not suspend
            assert not await is_free(world, key)
            coroutine.close()
            await world.until(lambda: is_free(world, key))
            assert world.asks("release") == 1, "of the first, which was not done"

    async def test_a_lost_lease_cancels_the_work(self, world: World, asyncio_only: None) -> None:
        client, key = world.client(), world.name()
        with pytest.raises(LeaseLost):
            async with client.idempotent(key, ttl=0.3) as call:
                await world.store.release(key, call.lease.token, STEP)
                await asyncio.sleep(STEP)


def test_what_cannot_be_right_is_refused_before_anything_is_sent() -> None:
    client = untouchable()
    for bad in ({"keep": 0}, {"keep": float("nan")}, {"ttl": 0}, {"timeout": -1}, {"on_lost": "x"}):
        with pytest.raises(Misuse):
            client.idempotent("key", **bad)
    with pytest.raises(Misuse, match="the fingerprint cannot be written as JSON"):
        client.idempotent("key", fingerprint=object())
    with pytest.raises(Misuse):
        client.idempotent("")
    with pytest.raises(Misuse, match="made of its arguments"):
        client.idempotent("key", fingerprint={"a": 1})(asyncio.sleep)
    with pytest.raises(Misuse, match="is not an async def function"):
        client.idempotent("key")(len)  # type: ignore[arg-type]


def test_a_blocking_generator_that_is_closed_in_the_block_keeps_what_is_done() -> None:
    def work(client: dibs.Client, result: int | None) -> Iterator[int]:
        with client.idempotent("key") as call:
            if result is not None:
                call.done(result)
            yield call.attempt

    with dibs.connect("memory:closed generators") as client:
        for result, attempt in ((None, 1), (17, 2)):
            block = work(client, result)
            assert next(block) == attempt
            block.close()  # type: ignore[attr-defined]
        with client.idempotent("key") as call:
            assert call.result == 17


def test_ctrl_c_at_the_end_of_the_block_gives_back_and_records_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with dibs.connect("memory:ctrl c") as client:
        for done in (False, True):
            with pytest.raises(KeyboardInterrupt), client.idempotent(f"key {done}", ttl=30) as call:
                monkeypatch.setattr("dibs.core.idempotent.idempotent.finish", interrupted)
                monkeypatch.setattr("dibs.core.idempotent.idempotent.finish_or_leave", interrupted)
                if not done:
                    raise ZeroDivisionError
                call.done(1)
            monkeypatch.undo()
        until(lambda: not client.holders("key"), "both are given back")
        assert [record.name for record in client.records("key")] == ["key True"]
        with client.idempotent("key True") as call:
            assert call.replayed


def test_a_store_without_records_says_so_at_once() -> None:
    client = untouchable()
    client._store.guarantees = client._store.guarantees._replace(cannot={Ability.RECORDS: "take redis:"})  # type: ignore[misc]
    with pytest.raises(NotSupported, match="take redis:"):
        client.idempotent("key")


async def outcome(client: Client, key: str, result: Any, **options: Any) -> tuple[bool, Any]:
    """Do the work of *key*, which returns or raises *result*: whether it was a replay, and what came of it."""
    async with client.idempotent(key, **options) as call:
        if not call.replayed:
            if isinstance(result, BaseException):
                raise result
            call.done(result)
    return call.replayed, call.result


async def held(lock: Lock) -> Any:
    return await lock.acquire(timeout=0)


async def forgotten(client: Client, key: str) -> bool:
    return await client.record(key) is None


async def someone_waits(client: Client, name: str) -> bool:
    return bool((await client.show(name)).waiting)
