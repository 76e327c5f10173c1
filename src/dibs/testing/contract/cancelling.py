"""Cancelling a step of async code: whatever the moment, no lock is left behind that nobody can give back.

Only here a test speaks asyncio itself: threads have no cancel, and the simulation has its own way to do it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from dibs.errors import LeaseLost
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.world import STEP, World

SOON = 1.0
"""Seconds within which a lock whose acquire was cancelled can be had."""


class Cancelling(Kind):
    """A cancelled step comes to an end."""

    async def test_cancelling_an_acquire_leaves_no_lock_behind(self, world: World, asyncio_only: None) -> None:
        client, theirs = world.client(), world.client()
        for delay in moments():
            name = world.name()
            await cancel_after(delay, client.lock(name).acquire())
            async with theirs.lock(name, timeout=SOON):
                pass

    async def test_cancelling_a_wait_leaves_no_ticket_behind(self, world: World, asyncio_only: None) -> None:
        client, held = world.client(), await world.crashed(world.name(), 60)
        for delay in moments():
            await cancel_after(delay, client.lock(held.name).acquire())
            assert await waiters_are(world, held.name, 0)
        assert await holds(world, held.name) == held.fence

    async def test_cancelling_a_release_still_frees_the_lock(self, world: World, asyncio_only: None) -> None:
        client = world.client()
        for delay in moments():
            lease = await client.lock(world.name()).acquire(timeout=0)
            await cancel_after(delay, lease.release())
            if delay:  # a task that is cancelled before it began has not asked for anything
                await world.until(lambda lease=lease: is_free(world, lease.name), SOON)  # type: ignore[misc]
            await lease.release()
            assert await is_free(world, lease.name)
            assert not lease.lost

    async def test_cancelling_the_end_of_a_block_still_frees_the_lock(self, world: World, asyncio_only: None) -> None:
        client = world.client()
        for delay in moments():
            lock = client.lock(world.name())

            async def block(lock: Any = lock) -> None:
                async with lock:
                    pass

            await cancel_after(delay, block())
            await world.until(lambda lock=lock: is_free(world, lock.name), SOON)  # type: ignore[misc]

    async def test_cancelling_a_renewal_leaves_the_lease_as_it_is(self, world: World, asyncio_only: None) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        for delay in moments():
            await cancel_after(delay, lease.renew())
        await lease.renew()
        assert await holds(world, lease.name) == lease.fence

    async def test_a_body_is_cancelled_when_its_lease_is_lost(self, world: World, asyncio_only: None) -> None:
        came_back = False
        with pytest.raises(LeaseLost):
            async with world.client().lock(world.name(), ttl=world.kept) as lease:
                await world.lose(lease)
                await asyncio.sleep(STEP)
                came_back = True
        assert not came_back


def moments() -> Iterator[float]:
    """How far a step may come before it is cancelled: so many turns of the loop, then fractions of seconds."""
    yield from range(12)
    yield from (0.0002, 0.0007, 0.002, 0.006)


async def cancel_after(delay: float, step: Coroutine[Any, Any, Any]) -> None:
    """Begin *step*, and cancel it after *delay* turns of the loop, or seconds if it is no whole number."""
    task = asyncio.ensure_future(step)
    if isinstance(delay, int):
        for _ in range(delay):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(delay)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None, task
    if not task.cancelled() and (lease := task.result()) is not None:
        await lease.release()  # it was quicker than the cancel
