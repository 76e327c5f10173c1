"""One call of acquire, when the store fails, hangs, or loses what it was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core.worlds import CoreTests
from dibs.core.lease import Lease
from dibs.errors import NotAcquired, OutcomeUnknown, StoreUnavailable
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.watched import drop_reply, drop_request, hang, refuse
from dibs.testing.contract.world import STEP, World

CLOSE = 0.05


class TestAcquiring(CoreTests):
    async def test_a_lost_answer_is_asked_for_again_with_the_same_token(self, world: World) -> None:
        client = world.client()
        world.wire(client).spoil("grant", drop_reply)
        lease = await client.lock(world.name()).acquire(timeout=1)
        assert world.asks("grant") == 2
        assert await holds(world, lease.name) == lease.fence
        await lease.release()

    async def test_where_the_last_ask_had_to_wait_the_first_one_takes_a_ticket(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        monkeypatch.setattr(world.wire(client), "queue_at_once", lambda name: name == held.name)
        waiter = world.begin(lambda: client.lock(held.name).acquire(timeout=5))
        await world.until(lambda: waiters_are(world, held.name, 1))
        assert world.asks("grant") == 1
        await world.store.release(held.name, held.token, STEP)
        await (await waiter.result()).release()
        with pytest.raises(NotAcquired):
            await client.lock((await world.crashed(held.name, 30)).name).acquire(timeout=0)
        assert await waiters_are(world, held.name, 0)

    async def test_whatever_ends_an_ask_whose_grant_is_on_its_way_the_lock_is_given_back(self, world: World) -> None:
        for error in (KeyboardInterrupt(), SystemExit(1), MemoryError(), ValueError("a broken store")):
            client, name = world.client(), world.name()

            async def granted_and(step: Any, within: float, error: BaseException = error) -> Any:
                await step()
                raise error

            world.wire(client).spoil("grant", granted_and)
            with pytest.raises(type(error)):
                await client.lock(name).acquire(timeout=1)
            assert await is_free(world, name)

    async def test_who_catches_ctrl_c_right_after_the_grant_may_ask_again(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, name = world.client(), world.name()
        keep = client._context.keep

        def interrupted(lease: Lease) -> None:
            keep(lease)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as caught:
            patch.setattr(client._context, "keep", interrupted)
            await client.lock(name).acquire(timeout=1)
        assert caught.tb is not None  # it refers to the lease
        await (await client.lock(name).acquire(timeout=2)).release()

    async def test_whatever_ends_a_wait_the_ticket_is_given_back(self, world: World) -> None:
        for error in (KeyboardInterrupt(), SystemExit(1), ValueError("a broken store")):
            client, held = world.client(), await world.crashed(world.name(), 30)

            async def interrupted(step: Any, within: float, error: BaseException = error) -> Any:
                raise error

            world.wire(client).spoil("wait", interrupted)
            with pytest.raises(type(error)):
                await client.lock(held.name).acquire(timeout=1)
            assert await waiters_are(world, held.name, 0)

    async def test_whatever_ends_a_release_it_is_still_done(self, world: World) -> None:
        for error in (KeyboardInterrupt(), SystemExit(1), ValueError("a broken store")):
            client = world.client()
            lease = await client.lock(world.name()).acquire(timeout=0)

            async def interrupted(step: Any, within: float, error: BaseException = error) -> Any:
                raise error

            world.wire(client).spoil("release", interrupted)
            with pytest.raises(type(error)):
                await lease.release()
            await world.until(lambda lease=lease: is_free(world, lease.name), within=1.0)  # type: ignore[misc]
            await lease.release()

    async def test_an_unknown_ask_whose_next_try_is_refused_is_given_back(self, world: World) -> None:
        """The answer was lost, then the server was gone: the error says unavailable, and the grant stood."""
        client, name = world.client(), world.name()
        world.wire(client).spoil("grant", drop_reply)
        world.wire(client).spoil("grant", refuse)
        with pytest.raises(StoreUnavailable):
            await client.lock(name, ttl=30).acquire(timeout=1)
        await world.until(lambda: is_free(world, name))

    async def test_a_lost_request_is_sent_again(self, world: World) -> None:
        client = world.client()
        world.wire(client).spoil("grant", drop_request)
        lease = await client.lock(world.name()).acquire(timeout=1)
        assert await holds(world, lease.name) == lease.fence

    async def test_a_lost_answer_of_busy_is_busy_in_the_end(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        world.wire(client).spoil("grant", drop_reply)
        with pytest.raises(NotAcquired) as refused:
            await client.lock(held.name).acquire(timeout=0.3)
        assert refused.value.holder is not None
        await world.until(lambda: waiters_are(world, held.name, 0))

    async def test_answers_that_never_come_are_unknown_and_not_busy(self, world: World) -> None:
        client, name = world.client(), world.name()
        world.wire(client).spoil_every("grant", drop_reply)
        with pytest.raises(OutcomeUnknown):
            await client.lock(name).acquire(timeout=0.2)
        await world.until(lambda: is_free(world, name))

    async def test_a_try_whose_answer_never_comes_is_unknown_and_leaves_nothing(self, world: World) -> None:
        client, name = world.client(), world.name()
        world.wire(client).spoil_every("grant", drop_reply)
        with pytest.raises(OutcomeUnknown):
            await client.lock(name).try_acquire()
        await world.until(lambda: is_free(world, name))

    async def test_a_store_that_is_down_is_reported_at_once_and_not_as_busy(self, world: World) -> None:
        client = world.client()
        world.wire(client).spoil_every("grant", refuse)

        async def attempt() -> float:
            began = world.now()
            for timeout in (None, 5, 0):
                with pytest.raises(StoreUnavailable) as failed:
                    await client.lock(world.name()).acquire(timeout=timeout)
                assert not isinstance(failed.value, OutcomeUnknown)
            return world.now() - began

        await world.measured(attempt, at_least=0, at_most=1)

    async def test_a_waiter_survives_a_store_that_fails_for_a_moment(self, world: World) -> None:
        client, lease = world.client(), await world.client().lock(world.name()).acquire(timeout=0)
        waiter = world.begin(lambda: client.lock(lease.name).acquire(timeout=STEP))
        await world.until(lambda: waiters_are(world, lease.name, 1))
        for fault in (refuse, drop_reply, refuse):
            world.wire(client).spoil("grant", fault)
        await lease.release()
        assert (await waiter.result()).fence > lease.fence

    async def test_a_server_that_never_answers_cannot_hold_up_an_acquire(self, world: World) -> None:
        client = world.client()
        for step in ("grant", "release"):
            world.wire(client).spoil_every(step, hang(world.runtime))

        async def attempt() -> float:
            began = world.now()
            with pytest.raises(OutcomeUnknown):
                await client.lock(world.name()).acquire(timeout=0.2)
            return world.now() - began

        await world.measured(attempt, at_least=0.2, at_most=0.2 + CLOSE)

    async def test_a_server_that_stops_answering_cannot_hold_up_a_waiter(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)

        async def attempt() -> float:
            world.wire(client).heal()
            began = world.now()
            waiter = world.begin(lambda: client.lock(held.name).acquire(timeout=0.25))
            await world.until(lambda: waiters_are(world, held.name, 1))
            for step in ("grant", "release", "wait"):
                world.wire(client).spoil_every(step, hang(world.runtime))
            with pytest.raises((NotAcquired, StoreUnavailable)):
                await waiter.result()
            took = world.now() - began
            world.wire(client).heal()
            await world.until(lambda: waiters_are(world, held.name, 0))
            return took

        await world.measured(attempt, at_least=0.25, at_most=0.25 + CLOSE)

    async def test_a_store_that_hung_for_longer_than_a_blip_is_not_told_as_busy(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 0.3)
        waiter = world.begin(lambda: client.lock(held.name).acquire(timeout=1.5))
        await world.until(lambda: waiters_are(world, held.name, 1))
        world.wire(client).spoil_every("grant", hang(world.runtime))
        with pytest.raises(StoreUnavailable):
            await waiter.result()

    async def test_no_request_is_given_more_than_what_is_left(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        with pytest.raises(NotAcquired):
            await client.lock(held.name).acquire(timeout=0.2)
        budgets = world.wire(client).budgets
        steps = {step for step, _ in budgets}
        assert steps == {"grant", "wait", "release"} or (world.real and "grant" in steps)
        assert all(within <= 0.2 + CLOSE for _, within in budgets)

    async def test_no_request_is_given_longer_than_half_the_ttl(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 0.3)
        await client.lock(held.name, ttl=0.2).acquire()
        assert max(within for step, within in world.wire(client).budgets if step == "grant") <= 0.1

    async def test_a_grant_that_comes_too_late_to_be_of_use_is_given_back(self, world: World) -> None:
        client, name, tokens = world.client(), world.name(), []

        async def slow(step: Callable[[], Awaitable[Any]], within: float) -> Any:
            answer = await step()
            tokens.append((await world.store.show(name, STEP)).fence)
            await world.sleep(0.85)  # longer than the ttl: a server that queued the request, or a paused client
            return answer

        world.wire(client).spoil("grant", slow)
        lease = await client.lock(name, ttl=0.8).acquire(timeout=STEP)
        assert lease.fence > tokens[0]
        assert not lease.lost
        await lease.release()
        assert await is_free(world, name)

    async def test_validity_counts_from_before_the_request(self, world: World) -> None:
        client, name = world.client(), world.name()

        async def slow(step: Callable[[], Awaitable[Any]], within: float) -> Any:
            answer = await step()
            await world.sleep(0.2)
            return answer

        world.wire(client).spoil("grant", slow)
        lease = await client.lock(name, ttl=10).acquire(timeout=0)
        assert lease.expires_in() <= 10 - 0.2

    async def test_validity_counts_from_the_ask_that_was_answered_and_so_does_the_store(self, world: World) -> None:
        client, name = world.client(), world.name()
        for _ in range(2):
            world.wire(client).spoil("grant", drop_reply)
        lease = await client.lock(name, ttl=10).acquire(timeout=1)
        holder = (await world.store.show(name, STEP)).holder
        assert holder is not None
        assert holder.expires_in is not None
        assert holder.expires_in >= lease.expires_in()

    async def test_waiters_of_one_client_cost_the_store_one_waiter(self, world: World) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        waiters = [world.begin(lambda: client.lock(held.name).acquire(timeout=0.3)) for _ in range(4)]
        await world.until(lambda: waiters_are(world, held.name, 1))
        await world.sleep(0.1)
        assert await waiters_are(world, held.name, 1)
        for waiter in waiters:
            with pytest.raises(NotAcquired):
                await waiter.result()

    async def test_waiters_of_one_client_are_served_in_order(self, world: World) -> None:
        client, lease = world.client(), await world.client().lock(world.name()).acquire(timeout=0)
        served: list[int] = []

        def hold(place: int) -> Callable[[], Any]:
            async def main() -> None:
                async with client.lock(lease.name):
                    served.append(place)

            return main

        waiters = []
        for place in range(5):
            waiters.append(world.begin(hold(place)))
            line = client._context.waiters._queues
            await world.until(lambda place=place, line=line: is_long(line.get(lease.name, ()), place + 1))  # type: ignore[misc]
        await lease.release()
        for waiter in waiters:
            await waiter.result()
        assert served == list(range(5))


async def is_long(line: Any, length: int) -> bool:
    return len(line) == length
