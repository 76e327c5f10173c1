"""A loss is found by whoever looks, in real threads too, where a mutex that is taken twice hangs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import dibs
from dibs.core.client import Client
from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime.clock import boot_time
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.store import MemoryStore
from dibs.stores.store import Claim


class _NeverRenews(MemoryStore):
    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        raise StoreUnavailable("memory:", "it is down")


def test_the_keeper_and_the_holder_both_find_a_lease_that_ended_by_the_clock() -> None:
    runtime = ThreadRuntime()
    client = dibs.Client(Client(_NeverRenews(MemoryServer(boot_time), "default", runtime), runtime))
    lease = client.lock("a", ttl=0.2).acquire()
    reasons: list[LossReason | None] = []

    def look() -> None:
        lease.lost.wait(5)
        reasons.append(lease.lost_reason)

    watchers = [threading.Thread(target=look, daemon=True) for _ in range(4)]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join(10)
    assert reasons == [LossReason.EXPIRED] * 4
    assert client.lock("b", ttl=5).try_acquire() is not None  # the keeper is not stuck either
    client.close()
