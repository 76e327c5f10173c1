"""What a ``with`` block does with the lock, and whose error comes out of it."""

from __future__ import annotations

import pytest

from dibs.errors import LeaseLost, NotAcquired
from dibs.testing.contract.ownership import holds
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.watched import drop_reply, refuse
from dibs.testing.contract.world import World


class Blocks(Kind):
    """The body runs only under the lock, and its own error is never hidden."""

    async def test_a_block_holds_the_lock_while_its_body_runs(self, world: World) -> None:
        lock = world.client().lock(world.name())
        async with lock as lease:
            assert await holds(world, lock.name) == lease.fence
        assert await holds(world, lock.name) is None

    async def test_the_body_of_a_refused_block_never_runs(self, world: World) -> None:
        held, ran = await world.crashed(world.name(), 30), False
        with pytest.raises(NotAcquired):
            async with world.client().lock(held.name, timeout=0.3):
                ran = True
        assert not ran
        assert await holds(world, held.name) == held.fence

    async def test_a_body_that_raises_frees_the_lock(self, world: World) -> None:
        lock = world.client().lock(world.name())
        for error in (ValueError("broken"), KeyboardInterrupt(), SystemExit(3)):
            with pytest.raises(type(error)) as raised:
                async with lock:
                    raise error
            assert raised.value is error
            assert await holds(world, lock.name) is None

    async def test_the_error_of_the_body_comes_out_of_a_block_whose_lease_was_lost(self, world: World) -> None:
        lock = world.client().lock(world.name(), on_lost="flag")
        with pytest.raises(ValueError, match="broken") as raised:
            async with lock as lease:
                await world.lose(lease)
                raise ValueError("broken")
        assert any("was lost" in note for note in raised.value.__notes__)

    async def test_a_body_that_went_well_ends_in_lease_lost_if_the_lease_was(self, world: World) -> None:
        lock = world.client().lock(world.name(), on_lost="flag")
        with pytest.raises(LeaseLost) as lost:
            async with lock as lease:
                reason = await world.lose(lease)
        assert (lost.value.name, lost.value.fence) == (lease.name, lease.fence)
        assert lost.value.reason is lease.lost_reason is reason
        assert await holds(world, lock.name) is None

    async def test_the_error_of_the_body_comes_out_of_a_block_whose_release_failed(self, world: World) -> None:
        client = world.client()
        with pytest.raises(ValueError, match="broken") as raised:
            async with client.lock(world.name()) as lease:
                world.wire(client).spoil("release", refuse)
                raise ValueError("broken")
        assert any("retried in the background" in note for note in raised.value.__notes__)
        await world.until(lambda: is_free_of(world, lease.name, lease.fence))

    async def test_a_release_that_failed_is_made_up_for(self, world: World) -> None:
        client = world.client()
        for fault in (refuse, drop_reply):
            async with client.lock(world.name()) as lease:
                world.wire(client).spoil("release", fault)
            await world.until(lambda lease=lease: is_free_of(world, lease.name, lease.fence))  # type: ignore[misc]

    async def test_a_lease_can_be_used_as_a_block(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        async with lease as same:
            assert same is lease
            assert await holds(world, lease.name) == lease.fence
        assert await holds(world, lease.name) is None

    async def test_a_block_may_release_early(self, world: World) -> None:
        lock = world.client().lock(world.name())
        async with lock as lease:
            await lease.release()
            assert await holds(world, lock.name) is None

    async def test_a_lock_object_may_be_used_for_block_after_block(self, world: World) -> None:
        lock, fences = world.client().lock(world.name()), list[int]()
        for _ in range(3):
            async with lock as lease:
                fences.append(lease.fence)
        assert fences == sorted(set(fences))


async def is_free_of(world: World, name: str, fence: int) -> bool:
    """Whether the grant with *fence* is over."""
    return await holds(world, name) != fence
