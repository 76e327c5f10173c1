"""A lock holds no state: it may be shared, nested and reused, and each block gets its own lease back."""

from __future__ import annotations

import functools

import pytest

from core.worlds import CoreTests, untouchable
from dibs.errors import Misuse
from dibs.runtime import run
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.world import STEP, World


class TestLock(CoreTests):
    async def test_another_task_waits_for_a_lock_that_its_client_holds(self, world: World) -> None:
        """It is another owner: not let in again, and not told that it would wait for itself."""
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        waiter = world.begin(client.lock(lease.name).acquire)
        await world.until(lambda: waiters_are(world, lease.name, 1))
        with pytest.raises(Misuse, match="already holds"):
            await client.lock(lease.name).acquire()
        await lease.release()
        assert (await waiter.result()).fence > lease.fence

    async def test_the_misuse_of_a_second_acquire_leaves_the_first_alone(self, world: World) -> None:
        lock = world.client().lock(world.name())
        async with lock as lease:
            with pytest.raises(Misuse, match="pass the lease on instead"):
                async with lock:
                    pytest.fail("the same task was let in twice")
            lease.check()
        assert await is_free(world, lock.name)

    async def test_blocks_of_one_lock_object_each_end_their_own_lease(self, world: World) -> None:
        lock, order = world.client().lock(world.name()), list[int]()

        async def block(place: int) -> None:
            async with lock as lease:
                await world.sleep(0.01)
                lease.check()
                order.append(lease.fence)

        await world.together(*(functools.partial(block, place) for place in range(4)))
        assert order == sorted(set(order))
        assert await is_free(world, lock.name)

    async def test_the_timeout_of_a_call_goes_before_that_of_the_lock(self, world: World) -> None:
        held = await world.crashed(world.name(), 0.3)
        lock = world.client().lock(held.name, timeout=0)
        assert await lock.try_acquire() is None
        await lock.acquire(timeout=STEP)

    async def test_a_block_may_be_left_by_another_task_than_entered_it(self, world: World) -> None:
        """As test fixtures of some frameworks are."""
        lock = world.client().lock(world.name(), on_lost="flag")
        await world.begin(lock.__aenter__).result()
        await world.begin(lambda: lock.__aexit__(None, None, None)).result()
        assert await is_free(world, lock.name)


def test_leaving_a_block_that_was_never_entered_is_misuse() -> None:
    lock = untouchable().lock("a")
    with pytest.raises(Misuse, match="without having been entered"):
        run(lock.__aexit__(None, None, None))


def test_a_lock_says_what_it_is() -> None:
    assert repr(untouchable().lock("a", ttl=5, timeout=1)) == "<Lock 'a' ttl=5 timeout=1.0>"
