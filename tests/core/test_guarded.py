"""A guarded block claims before its first line and seals after its last, and never keeps the lock when that fails."""

from __future__ import annotations

import pytest

from core.worlds import CoreTests
from dibs.errors import LeaseLost, Misuse, StaleFence
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.world import World

TTL = 0.3


class Door:
    """A guard that writes down what it is told, and refuses what it is told to refuse."""

    def __init__(self, refuses: Exception | None = None) -> None:
        self.told: list[tuple[str, str, int]] = []
        self._refuses = refuses

    async def claim(self, name: str, fence: int) -> None:
        self.told.append(("claim", name, fence))
        if self._refuses is not None:
            raise self._refuses

    def seal(self, name: str, fence: int) -> None:
        self.told.append(("seal", name, fence))


class BrokenSeal(Door):
    def seal(self, name: str, fence: int) -> None:
        raise self._refuses or OSError("the database is gone")


class TestGuarded(CoreTests):
    async def test_it_claims_before_the_block_and_seals_after_it(self, world: World) -> None:
        door, lock = Door(), world.client().lock(world.name())
        async with lock.guarded(door) as lease:
            assert door.told == [("claim", lock.name, lease.fence)]
            lease.check()
        assert door.told[1:] == [("seal", lock.name, lease.fence)]
        assert await is_free(world, lock.name)

    async def test_a_refused_claim_gives_the_lock_back(self, world: World) -> None:
        lock = world.client().lock(world.name())
        with pytest.raises(StaleFence):
            async with lock.guarded(Door(StaleFence(lock.name, 1, 2))):
                pytest.fail("the block was entered")
        assert await is_free(world, lock.name)

    async def test_an_error_of_the_block_comes_out_and_the_grant_is_sealed(self, world: World) -> None:
        door, lock = Door(), world.client().lock(world.name())
        with pytest.raises(ZeroDivisionError):
            async with lock.guarded(door):
                raise ZeroDivisionError
        assert [step for step, *_ in door.told] == ["claim", "seal"]
        assert await is_free(world, lock.name)

    async def test_a_guard_that_cannot_be_told_of_the_end_does_not_fail_the_block(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        lock = world.client().lock(world.name())
        async with lock.guarded(BrokenSeal()):
            pass
        assert "the database is gone" in caplog.text
        assert await is_free(world, lock.name)

    async def test_a_loss_is_told_at_the_end_and_the_grant_is_sealed_all_the_same(self, world: World) -> None:
        door, lock = Door(), world.client().lock(world.name(), on_lost="flag")
        with pytest.raises(LeaseLost):
            async with lock.guarded(door) as lease:
                await world.client().evict(lock.name, fence=lease.fence)
        assert door.told[-1] == ("seal", lock.name, lease.fence)

    async def test_a_lease_lost_during_the_claim_does_not_enter_the_block(self, world: World) -> None:
        """The claim may have waited behind the transaction of a holder that stands still."""
        lock = world.client().lock(world.name(), ttl=TTL, on_lost="flag")

        class Slow(Door):
            async def claim(self, name: str, fence: int) -> None:
                await world.client().evict(name, fence=fence)
                await world.sleep(TTL)  # until the keeper has asked

        with pytest.raises(LeaseLost):
            async with lock.guarded(Slow()):
                pytest.fail("the block was entered")

    async def test_each_block_is_entered_once(self, world: World) -> None:
        block = world.client().lock(world.name()).guarded(Door())
        async with block:
            pass
        with pytest.raises(Misuse, match="once for each"):
            await block.__aenter__()
        with pytest.raises(Misuse, match="without having been entered"):
            await world.client().lock(world.name()).guarded(Door()).__aexit__(None, None, None)
