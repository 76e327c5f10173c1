"""What a store declares that it cannot do is refused, in its own words, before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dibs.core.client import Client
from dibs.errors import NotSupported
from dibs.stores.guarantees import Ability
from dibs.testing.contract.suite import Kind
from dibs.testing.contract.world import World

WAYS: dict[Ability, tuple[Callable[[Client, str], Any], ...]] = {
    Ability.RECORDS: (
        lambda client, name: client.idempotent(name),
        lambda client, name: client.once(name, slot="1"),
        lambda client, name: client.record(name),
        lambda client, name: client.records(name),
        lambda client, name: client.forget_record(name, fence=1),
    ),
    Ability.SHARED: (
        lambda client, name: client.lock(name, shared=True),
        lambda client, name: client.locked(name, shared=True),
    ),
    Ability.SEMAPHORE: (lambda client, name: client.semaphore(name, 3),),
}
"""How a client is asked for what needs an ability."""


class Declared(Kind):
    """A promise that is not made is not asked of the server either."""

    async def test_what_a_store_cannot_do_is_refused_before_anything_is_sent(self, world: World) -> None:
        client = world.client()
        client._context.check_usable()
        for ability, why in world.store.guarantees.cannot.items():
            for way in WAYS.get(ability, ()):
                with pytest.raises(NotSupported) as refused:
                    await _answered(way(client, world.name()))
                assert why in str(refused.value)
        assert not world.wire(client).asked

    async def test_a_lease_that_cannot_be_handed_over_is_kept(self, world: World) -> None:
        """Whoever tries is told so, and has lost nothing."""
        client = world.client()
        async with client.lock(world.name()) as lease:
            if Ability.HANDOVER in world.store.guarantees.cannot:
                with pytest.raises(NotSupported):
                    await lease.detach()
            lease.check()
            assert [holder.fence for holder in await client.holders(lease.name)] == [lease.fence]


async def _answered(answer: Any) -> None:
    if isinstance(answer, Awaitable):
        await answer
