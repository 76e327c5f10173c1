"""A client: what it refuses from where, and what it does at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from core.worlds import CoreTests, untouchable
from dibs.core.client import Client
from dibs.errors import LeaseLost, Misuse
from dibs.runtime import run
from dibs.testing.contract.ownership import is_free
from dibs.testing.contract.world import World

CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "acquire": lambda client: client.lock("a").acquire(),
    "try_acquire": lambda client: client.lock("a").try_acquire(),
    "holders": lambda client: client.holders(),
    "show": lambda client: client.show("a"),
    "evict": lambda client: client.evict("a", fence=1),
    "resume": lambda client: client.resume("dibs1:a:b:1:30:"),
}


class TestClient(CoreTests):
    async def test_a_closed_client_refuses_everything(self, world: World) -> None:
        client = world.client()
        await client.close()
        for call in CALLS.values():
            with pytest.raises(Misuse, match="is closed; connect a new one"):
                await call(client)

    async def test_a_client_is_closed_by_its_block(self, world: World) -> None:
        async with world.client() as client:
            lease = await client.lock(world.name()).acquire(timeout=0)
        assert await is_free(world, lease.name)
        assert repr(client).endswith("closed>")

    async def test_leases_of_a_closed_client_are_released_and_not_lost(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        await client.close()
        assert not lease.lost
        with pytest.raises(Misuse, match="was released"):
            lease.check()
        await lease.release()

    async def test_a_client_may_be_closed_inside_a_block_of_its_lock(self, world: World) -> None:
        client = world.client()
        async with client.lock(world.name()) as lease:
            await client.close()
        assert await is_free(world, lease.name)

    async def test_resuming_what_one_holds_is_misuse(self, world: World) -> None:
        client = world.client()
        lease = await client.lock(world.name()).acquire(timeout=0)
        with pytest.raises(Misuse, match="already holds"):
            await client.resume(lease.to_str())
        lease.check()

    async def test_a_resumed_lease_is_kept(self, world: World) -> None:
        lease = await world.client().lock(world.name(), ttl=world.kept).acquire(timeout=0)
        resumed = await world.client().resume(await lease.detach())
        await world.sleep(1.2 * world.kept)
        resumed.check()
        await resumed.release()

    async def test_a_lease_that_was_taken_meanwhile_is_not_resumed(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        text = await lease.detach()
        await world.client().evict(lease.name, fence=lease.fence)
        with pytest.raises(LeaseLost, match="evicted"):
            await world.client().resume(text)

    async def test_many_leases_have_one_keeper(self, world: World) -> None:
        client = world.client()
        leases = [await client.lock(world.name()).acquire(timeout=0) for _ in range(1000)]
        assert client._context.keeper._job is not None
        first = client._context.keeper._job
        more = await client.lock(world.name()).acquire(timeout=0)
        assert client._context.keeper._job is first
        for lease in [*leases, more]:
            await lease.release()


def test_connecting_sends_nothing() -> None:
    client = untouchable()
    client.lock("a").__repr__()
    assert client.guarantees.name == "memory"
    run(client.close())
