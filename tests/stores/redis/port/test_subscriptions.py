"""Being called: one subscription for all waiters, none waits for the dead, and a lost call costs little."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import NotAcquired
from dibs.stores.redis.port import subscriber_async, subscriber_blocking
from dibs.stores.store import Busy
from dibs.testing.contract.suite import Fixtures, Kind
from dibs.testing.contract.world import STEP, Happening, World
from dibs.testing.proxy import FaultProxy
from servers.node import Node
from servers.redis import RedisServer
from tempo import took

AT_ONCE = 0.09
"""Seconds: less than the reservation for the first waiter."""


class TestListening(Kind, Fixtures):
    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def proxy(self, redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy]) -> FaultProxy:
        return fault_proxy(redis_server)

    @pytest.fixture
    def url(self, proxy: FaultProxy) -> str:
        return f"redis://127.0.0.1:{proxy.port}"

    async def test_a_release_is_heard_at_once(self, world: World) -> None:
        async def attempt() -> float:
            lease, waiter = await held_and_waited_for(world, world.name())
            return await handed_on(world, lease, waiter)

        await world.measured(attempt, at_least=0.0, at_most=AT_ONCE)

    async def test_the_waiters_of_a_dead_client_are_passed_over_at_once(self, world: World, url: str) -> None:
        async def attempt() -> float:
            name = world.name()
            held = await world.crashed(name, 30)
            for _ in range(3):
                dead = self.open_store(url, "default", world.runtime)
                assert isinstance(await dead.grant(world.ask(name, queue=True), STEP), Busy)
                await dead.close()
            waiter = world.begin(world.client().lock(name).acquire)
            await world.until(lambda: waiters_are(world, name, 4))
            began = world.now()
            await world.store.release(name, held.token, STEP)
            await waiter.result()
            return world.now() - began

        await world.measured(attempt, at_least=0.0, at_most=AT_ONCE)

    async def test_a_first_in_line_that_stands_still_costs_its_reservation(self, world: World) -> None:
        async def attempt() -> float:
            name = world.name()
            held = await world.crashed(name, 30)
            assert isinstance(await world.store.grant(world.ask(name, queue=True), STEP), Busy)  # and never asks again
            waiter = world.begin(world.client().lock(name).acquire)
            await world.until(lambda: waiters_are(world, name, 2))
            began = world.now()
            await world.store.release(name, held.token, STEP)
            await waiter.result()
            return world.now() - began

        await world.measured(attempt, at_least=0.05, at_most=0.3)

    async def test_a_call_that_is_lost_is_made_up_for_by_the_next_waiter(self, world: World, proxy: FaultProxy) -> None:
        name, client = world.name(), world.client()
        lease = await world.client().lock(name).acquire(timeout=0)
        first = world.begin(lambda: refused(client, name, 1.0))
        await world.until(lambda: waiters_are(world, name, 1))
        second = world.begin(world.client().lock(name).acquire)
        await world.until(lambda: waiters_are(world, name, 2))
        with proxy.drop("replies", b"now ", end=None), took(1):
            await lease.release()
            await second.result()
        await first.result()

    async def test_when_the_subscription_breaks_all_waiters_ask_again(self, world: World, proxy: FaultProxy) -> None:
        lease, waiter = await held_and_waited_for(world, world.name())
        for _ in range(3):
            proxy.cut()
            await world.sleep(0.02)
        await world.until(lambda: is_called(world, lease.name))
        with took(2):
            await give_back(lease)
            await waiter.result()

    async def test_a_subscription_that_says_nothing_any_more_is_replaced(
        self, world: World, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (subscriber_blocking, subscriber_async):
            monkeypatch.setattr(module, "QUIET", 0.05)
        held = await world.crashed(world.name(), 30)
        ask = world.ask(held.name, queue=True)
        fault = proxy.drop("replies", b"pong", times=None, end=None)
        accepted = proxy.accepted
        for _ in range(5):
            busy = await world.store.grant(ask, STEP)
            assert isinstance(busy, Busy)
            await world.store.wait(ask, busy, 0.1)
        assert fault.count
        assert proxy.accepted > accepted + 1

    async def test_waiters_for_many_names_are_called_through_one_connection(
        self, world: World, redis_server: RedisServer
    ) -> None:
        client, holder = world.client(), world.client()
        names = [world.name() for _ in range(20)]
        leases = [await holder.lock(name).acquire(timeout=0) for name in names]
        waiters = [world.begin(client.lock(name).acquire) for name in names]
        for name in names:
            await world.until(lambda name=name: waiters_are(world, name, 1))  # type: ignore[misc]
        listening = redis_server.command("CLIENT", "LIST", "TYPE", "PUBSUB")
        assert len(listening.splitlines()) == 1
        with took(3):
            for lease, waiter in zip(reversed(leases), reversed(waiters), strict=True):
                await lease.release()
                await waiter.result()

    async def test_a_waiter_that_leaves_hands_the_listening_on(self, world: World) -> None:
        client = world.client()
        first, second = world.name(), world.name()
        await world.crashed(first, 30)
        reader = world.begin(lambda: refused(client, first, 0.3))
        await world.until(lambda: waiters_are(world, first, 1))
        held = await world.crashed(second, 30)
        waiter = world.begin(client.lock(second).acquire)
        await world.until(lambda: waiters_are(world, second, 1))
        await reader.result()

        with took(1):
            await world.store.release(second, held.token, STEP)
            await waiter.result()

    async def test_waiters_of_one_client_cost_the_server_next_to_nothing(
        self, world: World, redis_server: RedisServer
    ) -> None:
        name, client = world.name(), world.client()
        lease = await world.client().lock(name).acquire(timeout=0)

        async def hold_once() -> None:
            async with client.lock(name):
                pass

        waiters = [world.begin(hold_once) for _ in range(100)]
        await world.until(lambda: waiters_are(world, name, 1))
        await world.sleep(0.1)
        before = scripts_run(redis_server)
        await world.sleep(1.0)
        assert scripts_run(redis_server) - before < 5
        assert await waiters_are(world, name, 1)
        await lease.release()
        for waiter in waiters:
            await waiter.result()
        assert scripts_run(redis_server) - before < 5 * len(waiters)


async def held_and_waited_for(world: World, name: str) -> tuple[Lease, Happening[Lease]]:
    """A lock that one client holds and another waits for."""
    lease = await world.client().lock(name).acquire(timeout=0)
    waiter = world.begin(world.client().lock(name).acquire)
    await world.until(lambda: waiters_are(world, name, 1))
    return lease, waiter


async def handed_on(world: World, lease: Lease, waiter: Happening[Lease]) -> float:
    """Seconds from the release to the grant."""
    began = world.now()
    await lease.release()
    await waiter.result()
    return world.now() - began


async def give_back(lease: Lease) -> None:
    """Release, also over a connection that has just been cut."""
    for _ in range(3):
        try:
            await lease.release()
        except Exception:
            continue
        return


async def refused(client: Client, name: str, timeout: float) -> None:
    """Wait in vain."""
    with pytest.raises(NotAcquired):
        await client.lock(name).acquire(timeout=timeout)


async def waiters_are(world: World, name: str, count: int) -> bool:
    """Whether that many clients wait for *name*."""
    return len((await world.store.show(name, STEP)).waiting) == count


async def is_called(world: World, name: str) -> bool:
    """Whether somebody waits for *name* and can be reached."""
    try:
        return bool((await world.store.show(name, STEP)).waiting)
    except Exception:
        return False


def scripts_run(server: RedisServer) -> int:
    """How many scripts the server was asked to run."""
    facts = server.info("commandstats")
    return sum(int(facts[f"cmdstat_{name}"].split(",")[0].removeprefix("calls=")) for name in ("evalsha",))
