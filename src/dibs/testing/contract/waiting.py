"""Who waits for a lock: for how long, in which order, and at what cost to the store."""

from __future__ import annotations

import functools

import pytest

from dibs.core.client import Client
from dibs.errors import NotAcquired
from dibs.stores.guarantees import Ability
from dibs.stores.store import Ask, Busy, Grant
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.world import STEP, Happening, World

CLOSE = 0.05
"""Seconds by which a deadline may be missed."""

CROWD = 8
"""Waiters of one lock: enough that waking all of them at each release would show."""


class Waiting(Kind):
    """Waiting ends in time, and everybody is served."""

    async def test_a_wait_ends_at_its_deadline(self, world: World) -> None:
        name, client = world.name(), world.client()
        await world.crashed(name, 30)
        for timeout in (0.03, 0.25):
            await world.measured(
                lambda timeout=timeout: refused_after(world, client, name, timeout),  # type: ignore[misc]
                at_least=timeout,
                at_most=timeout + CLOSE,
            )

    async def test_a_single_try_does_not_wait(self, world: World) -> None:
        name, client = world.name(), world.client()
        await world.crashed(name, 30)
        await world.measured(lambda: refused_after(world, client, name, 0), at_least=0, at_most=CLOSE)

    async def test_whoever_gave_up_waiting_leaves_no_ticket(self, world: World) -> None:
        name, client = world.name(), world.client()
        await world.crashed(name, 30)
        await refused_after(world, client, name, 0.2)  # in which every store has answered, on a busy machine too
        await world.until(lambda: waiters_are(world, name, 0))

    async def test_a_waiter_gets_the_lock_when_it_is_released(self, world: World) -> None:
        name, theirs = world.name(), world.client()
        lease = await world.client().lock(name).acquire(timeout=0)
        waiter = world.begin(theirs.lock(name, note="waits").acquire)
        await world.until(lambda: waiters_are(world, name, 1))
        assert [waiting.note for waiting in (await world.store.show(name, STEP)).waiting] == ["waits"]
        await lease.release()
        assert (await waiter.result()).fence > lease.fence
        assert (await world.store.show(name, STEP)).waiting == ()

    @needs(Ability.EXPIRY)
    async def test_a_waiter_gets_the_lock_when_its_holder_is_gone(self, world: World) -> None:
        name, client = world.name(), world.client()
        crashed = await world.crashed(name, world.short)
        assert (await client.lock(name).acquire(timeout=STEP)).fence > crashed.fence

    @needs(Ability.ORDER)
    async def test_who_came_first_is_served_first(self, world: World) -> None:
        async def attempt() -> bool:
            name, served = world.name(), list[int]()
            lease = await world.client().lock(name).acquire(timeout=0)
            waiters = [await wait_in_line(world, name, place, served) for place in range(CROWD)]
            await lease.release()
            for waiter in waiters:
                await waiter.result()
            return served == list(range(CROWD))

        await world.orderly(attempt)

    @needs(Ability.ORDER)
    async def test_one_release_wakes_one_waiter(self, world: World) -> None:
        """A crowd costs the store a few requests for each hand-over, however large it is."""
        name, served = world.name(), list[int]()
        lease = await world.client().lock(name).acquire(timeout=0)
        waiters = [await wait_in_line(world, name, place, served) for place in range(CROWD)]
        before, began = world.asks("grant"), world.now()
        await lease.release()
        for waiter in waiters:
            await waiter.result()
        polls = CROWD * (world.now() - began) / 0.1  # who waits may ask again by itself, slowly
        assert world.asks("grant") - before <= 2 * CROWD + polls

    @needs(Ability.ORDER)
    async def test_who_has_no_ticket_does_not_barge_past_who_has_one(self, world: World) -> None:
        async def attempt() -> float:
            held, first = await world.crashed(world.name(), 30), None
            first = world.ask(held.name, queue=True)
            assert isinstance(await world.store.grant(first, STEP), Busy)
            began = world.now()
            await world.store.release(held.name, held.token, STEP)
            barged = isinstance(await world.store.grant(world.ask(held.name), STEP), Grant)
            took = world.now() - began
            assert not barged or took > CLOSE, "a try without a ticket took a lock that was let go for another"
            assert barged or isinstance(await world.store.grant(first, STEP), Grant)
            return took

        await world.measured(attempt, at_least=0, at_most=CLOSE)

    @needs(Ability.ORDER)
    async def test_a_second_ask_does_not_lose_the_place_in_line(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        first, second = (world.ask(held.name, queue=True) for _ in range(2))
        for ask in (first, second, first, second, first):
            assert isinstance(await world.store.grant(ask, STEP), Busy)
        assert len((await world.store.show(held.name, STEP)).waiting) == 2
        await world.store.release(held.name, held.token, STEP)
        assert isinstance(await world.store.grant(first, STEP), Grant)

    async def test_a_waiter_that_gives_up_passes_the_hint_on(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        first, second = (world.ask(held.name, queue=True) for _ in range(2))
        assert isinstance(await world.store.grant(first, STEP), Busy)
        assert isinstance(await world.store.grant(second, STEP), Busy)
        await world.store.release(held.name, held.token, STEP)
        await world.store.release(first.name, first.token, STEP)
        await world.until(lambda: granted(world, second), within=1.0)

    async def test_a_waiter_that_died_keeps_nobody_waiting_for_long(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        dead = world.ask(held.name, queue=True)
        assert isinstance(await world.store.grant(dead, STEP), Busy)
        alive = world.begin(world.client().lock(held.name).acquire)
        await world.until(lambda: waiters_are(world, held.name, 2))
        await world.store.release(held.name, held.token, STEP)
        await alive.result()

    async def test_a_ticket_given_back_frees_nothing(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        waiter = world.ask(held.name, queue=True)
        assert isinstance(await world.store.grant(waiter, STEP), Busy)
        assert await world.store.release(waiter.name, waiter.token, STEP) is not None
        assert await world.store.renew([held], STEP) == [None]
        assert (await world.store.show(held.name, STEP)).waiting == ()

    async def test_a_wait_for_a_hint_ends_within_its_budget(self, world: World) -> None:
        held = await world.crashed(world.name(), 30)
        ask = world.ask(held.name, queue=True)

        async def attempt() -> float:
            busy, began = await world.store.grant(ask, STEP), world.now()
            assert isinstance(busy, Busy)
            await world.store.wait(ask, busy, 0.1)
            return world.now() - began

        await world.measured(attempt, at_least=0, at_most=0.1 + CLOSE)
        assert await world.store.renew([held], STEP) == [None]

    async def test_waiters_of_one_client_are_all_served(self, world: World) -> None:
        client, name = world.client(), world.name()

        async def hold_once() -> int:
            async with client.lock(name) as lease:
                return lease.fence

        fences = await world.together(*(hold_once for _ in range(CROWD)))
        assert len(set(fences)) == CROWD

    async def test_two_clients_never_hold_a_lock_together(self, world: World) -> None:
        clients, name, inside, most = [world.client() for _ in range(3)], world.name(), 0, 0

        async def work(client: Client) -> None:
            nonlocal inside, most
            for _ in range(5):
                async with client.lock(name):
                    inside += 1
                    most = max(most, inside)
                    await world.sleep(0.001)
                    inside -= 1

        await world.together(*(functools.partial(work, client) for client in clients))
        assert most == 1


async def refused_after(world: World, client: Client, name: str, timeout: float) -> float:
    """Try for *timeout* seconds in vain, and tell how long that took."""
    began = world.now()
    with pytest.raises(NotAcquired) as refused:
        await client.lock(name).acquire(timeout=timeout)
    took = world.now() - began
    assert timeout - 0.02 <= refused.value.waited <= took + 0.001  # it is told before the place in line is given back
    return took


async def wait_in_line(world: World, name: str, place: int, served: list[int]) -> Happening[None]:
    """Let a new client wait for *name*; return when it is in line."""
    client = world.client()

    async def main() -> None:
        async with client.lock(name):
            served.append(place)

    waiter = world.begin(main)
    await world.until(lambda: joined(world, waiter, name, place + 1))
    return waiter


async def joined(world: World, waiter: Happening[None], name: str, count: int) -> bool:
    """Whether so many wait for *name* by the store; the error of *waiter* if it has given up."""
    if waiter.over:
        await waiter.result()
    return await waiters_are(world, name, count)


async def waiters_are(world: World, name: str, count: int) -> bool:
    """Whether so many wait for *name* by the store."""
    return len((await world.store.show(name, STEP)).waiting) == count


async def granted(world: World, ask: Ask) -> bool:
    """Ask, and tell whether it was granted."""
    return isinstance(await world.store.grant(ask, STEP), Grant)
