"""Several locks as one: the loss of any is the loss of the whole, and one timeout is for all."""

from __future__ import annotations

import pytest

from core.worlds import CoreTests
from dibs.errors import LeaseLost, NotAcquired
from dibs.testing.contract.world import STEP, World


class TestSeveral(CoreTests):
    @pytest.mark.parametrize("place", range(3))
    async def test_the_loss_of_any_one_is_seen(self, world: World, place: int) -> None:
        """The first, the last, or one between."""
        client, names = world.client(), [world.name() for _ in range(3)]
        leases = await client.all(*names, on_lost="flag").acquire(timeout=0)
        assert not leases.lost
        waiting = world.begin(lambda: leases.lost.wait(STEP))
        lost = leases[names[place]]
        reason = await world.lose(lost)
        with pytest.raises(LeaseLost):
            await lost.renew()
        assert await waiting.result()
        assert leases.lost
        assert leases.lost.is_set()
        assert leases.lost_reason is reason
        with pytest.raises(LeaseLost) as error:
            leases.check()
        assert error.value.name == names[place]


class TestSeveralInVirtualTime(CoreTests):
    runtimes = ("simulated",)

    async def test_two_waits_share_one_timeout(self, world: World) -> None:
        """What the first lock took of it is not there for the second."""
        client, names = world.client(), [world.name() for _ in range(2)]
        await world.crashed(names[0], 0.6)
        await world.crashed(names[1], 60)
        began = world.now()
        with pytest.raises(NotAcquired) as refused:
            await client.all(*names, timeout=1.0).acquire()
        assert world.now() - began < 1.1
        assert refused.value.name == names[1]
