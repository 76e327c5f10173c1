"""The keeper: one for each client, which renews, tries again, and gives back what could not be given back."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from core.worlds import CoreTests
from dibs.core.budgets import LONGEST_STEP, retry_after
from dibs.core.checks import LONGEST_TIME
from dibs.core.client import Client
from dibs.errors import LeaseLost, LossReason, StoreUnavailable
from dibs.runtime import run
from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.clock import boot_time
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import open_store
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.watched import Fault, drop_reply, hang, refuse
from dibs.testing.contract.world import STEP, World
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Cancelled
from servers.process import until

DEATHS: dict[type, type[BaseException]] = {
    ThreadRuntime: SystemExit,  # which a thread dies of without a word
    AsyncioRuntime: asyncio.CancelledError,
    SimulatedRuntime: Cancelled,
}


class TestKeeper(CoreTests):
    async def test_one_failed_renewal_is_not_a_loss(self, world: World) -> None:
        client = world.client()
        wire = world.wire(client)
        for fault in (refuse, drop_reply):
            wire.spoil("renew", fault)
        lease = await client.lock(world.name(), ttl=world.kept).acquire(timeout=0)
        end = lease.lost._deadline
        await world.until(lambda: asked(world, "renew", 3))
        await world.sleep(0.05)
        assert not lease.lost
        assert lease.lost._deadline > end

    async def test_a_renewal_whose_answer_was_lost_does_not_extend_the_holders_time(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name(), ttl=20).acquire(timeout=0)
        before = lease.lost._deadline
        world.wire(client).spoil("renew", drop_reply)
        with pytest.raises(StoreUnavailable):
            await lease.renew()
        assert lease.lost._deadline == before
        assert not lease.lost

    async def test_a_release_that_nobody_heard_is_repeated_until_it_is_heard(self, world: World) -> None:
        client = world.client()
        wire = world.wire(client)
        lease = await client.lock(world.name()).acquire(timeout=0)
        for _ in range(3):
            wire.spoil("release", refuse)
        with pytest.raises(StoreUnavailable):
            await lease.release()
        await world.until(lambda: is_free(world, lease.name))
        assert wire.asked["release"] == 4

    async def test_a_failed_release_can_be_called_again(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        world.wire(client).spoil_every("release", refuse)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await lease.release()
        world.wire(client).heal()
        await lease.release()
        assert await is_free(world, lease.name)
        assert not lease.lost

    async def test_a_hanging_renewal_hides_no_loss(self, world: World) -> None:
        client = world.client()
        world.wire(client).spoil_every("renew", hang(world.runtime))

        async def attempt() -> float:
            lease = await client.lock(world.name(), ttl=0.2).acquire(timeout=0)
            began = world.now()
            assert await lease.lost.wait(STEP)
            return world.now() - began

        await world.measured(attempt, at_least=0.15, at_most=0.2 + 0.3)

    async def test_a_keeper_ends_when_nothing_is_left_and_begins_again(self, world: World) -> None:
        client = world.client()
        for _ in range(3):
            lease = await client.lock(world.name(), ttl=world.kept).acquire(timeout=0)
            await world.sleep(0.3)
            assert not lease.lost
            await lease.release()
        lease = await client.lock(world.name(), ttl=world.kept).acquire(timeout=0)
        await world.sleep(1.2 * world.kept)
        assert not lease.lost

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    async def test_a_keeper_that_died_is_replaced_and_forgets_nothing(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name(), ttl=world.kept).acquire(timeout=0)

        async def dies(step: Any, within: float) -> None:
            raise DEATHS[type(world.runtime)]

        world.wire(client).spoil("renew", dies)
        await world.until(lambda: asked(world, "renew", 1))
        await client.lock(world.name(), ttl=20).acquire(timeout=0)  # which needs a keeper
        await world.sleep(1.2 * world.kept)
        assert not lease.lost

    async def test_a_lease_that_nobody_refers_to_is_not_renewed(self, world: World) -> None:
        client, name = world.client(), world.name()
        await client.lock(name, ttl=0.2).acquire(timeout=0)
        gc.collect()
        await world.until(lambda: is_free(world, name), within=1.0)
        assert world.asks("renew") == 0

    async def test_a_dropped_lease_does_not_keep_its_own_task_from_acquiring_again(self, world: World) -> None:
        client, name = world.client(), world.name()
        first = (await client.lock(name, ttl=0.2).acquire(timeout=0)).fence
        gc.collect()
        assert (await client.lock(name).acquire(timeout=STEP)).fence > first

    async def test_a_dropped_lease_is_forgotten_and_told(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        client, name = world.client(), world.name()
        released = await client.lock(world.name(), ttl=0.2).acquire(timeout=0)
        await released.release()
        await client.lock(name, ttl=0.2).acquire(timeout=0)
        del released
        gc.collect()
        await world.until(lambda: told(caplog), within=2.0)
        assert [record.args for record in caplog.records] == [(name,)]  # and nothing of the one that was released

    async def test_closing_gives_back_what_was_still_to_be_given_back(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        for _ in range(2):
            world.wire(client).spoil("release", refuse)
        with pytest.raises(StoreUnavailable):
            await lease.release()
        await client.close()
        assert await is_free(world, lease.name)

    async def test_closing_ends_in_time_although_the_store_hangs(self, world: World) -> None:
        client = world.client()
        leases = [await client.lock(world.name(), ttl=3).acquire(timeout=0) for _ in range(5)]
        world.wire(client).spoil_every("release", hang(world.runtime))

        async def attempt() -> float:
            began = world.now()
            await client.close()
            return world.now() - began

        await world.measured(attempt, at_least=0, at_most=2.5)
        assert leases

    async def test_a_renewal_that_is_confirmed_too_late_revives_nothing(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name(), ttl=0.2).acquire(timeout=0)

        async def late(step: object, within: float) -> object:
            answer = await step()  # type: ignore[operator]
            await world.sleep(0.3)
            return answer

        world.wire(client).spoil("renew", late)
        assert await lease.lost.wait(STEP)
        with pytest.raises(LeaseLost):
            lease.check()
        await world.sleep(0.2)
        assert lease.lost
        await world.until(lambda: is_free(world, lease.name), within=0.5)

    async def test_a_renewal_is_waited_for_no_longer_than_another_step_however_long_the_ttl(self, world: World) -> None:
        client, given = world.client(), list[float]()

        async def hangs(step: object, within: float) -> NoReturn:
            given.append(within)
            raise StoreUnavailable("test", "no answer in time")

        world.wire(client).spoil_every("renew", hangs)
        lease = await client.lock(world.name(), ttl=LONGEST_TIME).acquire(timeout=0)
        for renew in (lease.renew, functools.partial(client.renew, lease.to_str())):
            with pytest.raises(StoreUnavailable):
                await renew()
        assert len(given) == 2
        assert max(given) <= LONGEST_STEP

    async def test_renewing_by_hand_extends_the_lease(self, world: World) -> None:
        lease = await world.client().lock(world.name(), ttl=20).acquire(timeout=0)
        await world.sleep(0.05)
        left = lease.expires_in()
        await lease.renew()
        assert lease.expires_in() > left
        assert await holds(world, lease.name) == lease.fence


class TestKeeperInVirtualTime(CoreTests):
    """What only a clock shows that stands still when it is told to."""

    runtimes = ("simulated",)

    async def test_a_renewal_that_is_confirmed_after_the_deadline_is_given_back(self, world: World) -> None:
        """The store counts on from the renewal, for a holder that has been told."""
        client, name = world.client(), world.name()
        lease = await client.lock(name, ttl=3, on_lost="flag").acquire(timeout=0)

        async def confirmed_late(step: Callable[[], Awaitable[Any]], within: float) -> Any:
            answer = await step()
            await lease.lost.wait(STEP)
            return answer

        world.wire(client).spoil("renew", confirmed_late)
        assert await lease.lost.wait(STEP)
        await world.sleep(0.1)
        assert await is_free(world, name)

    async def test_a_renewal_that_is_confirmed_after_the_deadline_revives_nothing(self, world: World) -> None:
        """Also if nobody has looked at the clock in between."""
        client = world.client()
        lease = await client.lock(world.name(), ttl=3, on_lost="flag").acquire(timeout=0)
        world.wire(client).spoil("renew", answered_after(world, 2.2))
        await world.sleep(3.5)
        assert lease.lost_reason is LossReason.EXPIRED

    async def test_a_confirmation_that_was_overtaken_does_not_shorten_a_lease(self, world: World) -> None:
        """Two renewals are under way, and the one that was sent first is answered last."""
        client = world.client()
        lease = await client.lock(world.name(), ttl=9, on_lost="flag").acquire(timeout=0)
        world.wire(client).spoil("renew", answered_after(world, 1.5))
        slow = world.begin(lease.renew)
        await world.sleep(1.0)
        await lease.renew()
        deadline = lease.lost._deadline
        await slow.result()
        assert lease.lost._deadline >= deadline

    async def test_a_short_lease_that_comes_while_the_keeper_naps_for_a_long_one_is_kept(self, world: World) -> None:
        """What is due sooner wakes the keeper."""
        client = world.client()
        await client.lock(world.name(), ttl=60).acquire(timeout=0)
        await world.sleep(0.1)
        short = await client.lock(world.name(), ttl=0.6, on_lost="flag").acquire(timeout=0)
        await world.sleep(2)
        assert not short.lost


def test_what_ended_while_the_machine_slept_is_told_at_the_next_look() -> None:
    """The timers of a machine that sleeps stand still, and the clock of leases does not."""
    slept = [0.0]
    runtime = ThreadRuntime()
    runtime.now = lambda: boot_time() + slept[0]
    client = Client(open_store("memory:slept", "default", runtime), runtime)
    lease = run(client.lock("name", ttl=600, on_lost="flag").acquire(timeout=0))
    told = threading.Event()
    lease.lost._when_over(told.set)
    until(lambda: client._context.keeper._napping_until > 0, "the keeper naps")
    slept[0] = 3600.0
    assert told.wait(30)
    assert lease.lost_reason is LossReason.EXPIRED
    run(client.close())


def answered_after(world: World, seconds: float) -> Fault:
    """Carry the step out, and answer so much later."""

    async def late(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        answer = await step()
        await world.sleep(seconds)
        return answer

    return late


def test_a_failed_request_is_tried_again_after_100_ms_doubling_to_a_second() -> None:
    assert [retry_after(failures, 30) for failures in range(1, 6)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert retry_after(10_000, 30) == 1.0


def test_a_short_lease_is_tried_again_sooner() -> None:
    assert retry_after(1, 0.2) == pytest.approx(0.01)


async def asked(world: World, step: str, times: int) -> bool:
    return world.asks(step) >= times


async def told(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether something was logged."""
    return bool(caplog.records)
