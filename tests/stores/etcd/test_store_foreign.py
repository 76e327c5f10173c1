"""What an administrator, or another program, does to the keys of etcd: the holder goes on or is told, others get in."""

from __future__ import annotations

import logging

import pytest

from dibs.errors import LeaseLost, LossReason, NotAcquired
from dibs.stores.store import Busy
from dibs.testing.contract.world import STEP, World
from servers.etcd import EtcdServer

from .kind import EtcdKind

ODD = ['{"host": "h", "pid": "x", "user": "u"}', '{"host": [], "pid": 1}', '{"since": 1e999}', "[" * 100_000, "\0", "5"]


class TestForeign(EtcdKind):
    async def test_a_key_that_somebody_puts_anew_under_its_holder_is_under_a_lease_again_at_the_next_renewal(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        etcd_server.call("kv/put", key=f"dibs/locks/default/a/{lease.token}", value="by hand")
        assert lease_of(etcd_server, lease.token) == 0
        await lease.renew()
        assert lease_of(etcd_server, lease.token) != 0
        shown = (await world.store.show("a", STEP)).holder
        assert shown is not None
        assert (shown.fence, shown.pid, shown.note) == (lease.fence, world.runtime.pid(), "")

    async def test_a_key_without_a_lease_is_shown_with_how_to_remove_it_and_a_wait_for_it_is_not_silent(
        self, world: World, etcd_server: EtcdServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        claim = await world.crashed("a", 30)
        etcd_server.call("kv/put", key=f"dibs/locks/default/a/{claim.token}", value="by hand")
        client = world.client()
        with caplog.at_level(logging.WARNING, "dibs"), pytest.raises(NotAcquired, match="dibs evict"):
            await client.lock("a").acquire(timeout=0.3)
        assert [record.getMessage() for record in caplog.records if "may not end" in record.getMessage()]
        [holder] = await client.holders()
        assert "dibs evict" in holder.note
        assert await client.evict("a", fence=holder.fence)
        assert (await client.lock("a").acquire(timeout=STEP)).fence > claim.fence

    async def test_what_others_wrote_harms_no_other_name(self, world: World, etcd_server: EtcdServer) -> None:
        lease = await world.client().lock("ours").acquire(timeout=0)
        for number, value in enumerate(ODD):
            etcd_server.call("kv/put", key=f"dibs/locks/default/odd {number}/x", value=value)
            etcd_server.call("kv/put", key=f"dibs/evicted/default/odd {number}", value=value)
            assert isinstance(await world.store.grant(world.ask(f"odd {number}"), STEP), Busy)
            shown = (await world.store.show(f"odd {number}", STEP)).holder
            assert "another program" in str(shown)
        assert [holder.name for holder in await world.store.holders("", STEP)] == [
            *(f"odd {number}" for number in range(len(ODD))),
            "ours",
        ]
        await lease.release()

    async def test_all_keys_deleted_is_a_loss_for_all_and_fences_rise(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        client = world.client()
        leases = [await client.lock(name).acquire(timeout=0) for name in "ab"]
        etcd_server.call("kv/deleterange", key="\0", range_end="\0")
        for lease in leases:
            with pytest.raises(LeaseLost):
                await lease.renew()
            assert lease.lost_reason is LossReason.TAKEN
            assert (await client.lock(lease.name).acquire(timeout=0)).fence > lease.fence


def lease_of(server: EtcdServer, token: str) -> int:
    """What the key of *token* is under."""
    [pair] = server.call("kv/range", key=f"dibs/locks/default/a/{token}")["kvs"]
    return int(pair.get("lease", 0))
