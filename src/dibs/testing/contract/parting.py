"""What happens to the steps that are under way while their client is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dibs.core.client import Client
from dibs.errors import Misuse
from dibs.runtime import Event
from dibs.testing.contract.ownership import holds
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.watched import Fault
from dibs.testing.contract.world import PATIENCE, STEP, World


class Parting(Kind):
    """A step that closing meets ends or is given back; it says `Misuse` and nothing else, and leaves nothing behind."""

    async def test_a_grant_that_closing_meets_is_given_back(self, world: World) -> None:
        client, name = world.client(), world.name()
        there, go_on = world.event(), world.event()
        world.wire(client).spoil("grant", answered_late(there, go_on))
        taking = world.begin(lambda: client.lock(name, ttl=60).acquire(timeout=0))
        assert await there.wait(PATIENCE)
        closing = world.begin(client.close)
        await world.until(lambda: is_closed(client))
        go_on.set()
        with pytest.raises(Misuse, match="is closed"):
            await taking.result()
        await closing.result()
        assert await holds(world, name) is None

    async def test_a_grant_that_comes_after_closing_is_given_back(self, world: World) -> None:
        client, name = world.client(), world.name()
        there, go_on = world.event(), world.event()
        world.wire(client).spoil("grant", sent_late(there, go_on))
        taking = world.begin(lambda: client.lock(name, ttl=60).acquire(timeout=0))
        assert await there.wait(PATIENCE)
        await client.close()
        go_on.set()
        with pytest.raises(Misuse, match="is closed"):
            await taking.result()
        assert await holds(world, name) is None

    async def test_a_waiter_is_told_and_leaves_the_line(self, world: World) -> None:
        client, held = world.client(), await world.client().lock(world.name()).acquire(timeout=0)
        waits = [world.begin(lambda: client.lock(held.name).acquire(timeout=60)) for _ in range(2)]
        await world.until(lambda: waiters_are(world, held.name, 1))
        await client.close()
        for waiting in waits:
            with pytest.raises(Misuse, match="is closed"):
                await waiting.result()
        assert (await world.store.show(held.name, STEP)).waiting == ()
        held.check()

    async def test_a_release_that_closing_meets_is_no_loss(self, world: World) -> None:
        client, name = world.client(), world.name()
        there, go_on = world.event(), world.event()
        lease = await client.lock(name, ttl=60).acquire(timeout=0)
        world.wire(client).spoil("release", sent_late(there, go_on))
        releasing = world.begin(lease.release)
        assert await there.wait(PATIENCE)
        closing = world.begin(client.close)
        await world.until(lambda: is_closed(client))
        go_on.set()
        await releasing.result()
        await closing.result()
        assert await holds(world, name) is None

    async def test_a_client_may_be_closed_twice_at_once(self, world: World) -> None:
        client, name = world.client(), world.name()
        lease = await client.lock(name, ttl=60).acquire(timeout=0)
        await world.together(client.close, client.close)
        assert await holds(world, name) is None
        assert not lease.lost


async def is_closed(client: Client) -> bool:
    """Whether closing has begun."""
    return client._context.closing.begun


def answered_late(there: Event, go_on: Event) -> Fault:
    """A fault that carries the step out, and keeps its answer back until *go_on*."""

    async def keep(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        answer = await step()
        there.set()
        assert await go_on.wait(PATIENCE)
        return answer

    return keep


def sent_late(there: Event, go_on: Event) -> Fault:
    """A fault that keeps the request back until *go_on*."""

    async def keep(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        there.set()
        assert await go_on.wait(PATIENCE)
        return await step()

    return keep
