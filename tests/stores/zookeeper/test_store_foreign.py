"""What an administrator, or another program, does to the nodes of ZooKeeper."""

from __future__ import annotations

import logging

import pytest
from kazoo.client import KazooClient

from dibs.errors import LeaseLost, LossReason, NotAcquired
from dibs.stores.store import Busy
from dibs.testing.contract.world import STEP, World

from .test_store import ZooKeeperKind

ODD = [
    b'{"host": "h", "user": "u", "pid": "x"}',
    b'{"host": [], "pid": 1}',
    b"[" * 100_000,
    b"\xff",
    b"9" * 5000,
]

LIKE_OURS = f"{'f' * 32}-0000000000"
"""The name of a node that counts as a ticket."""


class TestForeign(ZooKeeperKind):
    async def test_a_persistent_node_is_shown_with_how_to_remove_it_and_a_wait_for_it_is_not_silent(
        self, world: World, raw: KazooClient, chroot: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        raw.create(f"{chroot}/default/a/{LIKE_OURS}", b"theirs", makepath=True)
        client = world.client()
        with caplog.at_level(logging.WARNING, "dibs"), pytest.raises(NotAcquired, match="persistent"):
            await client.lock("a").acquire(timeout=0.3)
        assert [record.getMessage() for record in caplog.records if "may not end" in record.getMessage()]
        [holder] = await client.holders()
        assert "dibs evict" in holder.note
        assert await client.evict("a", fence=holder.fence)
        assert (await client.lock("a").acquire(timeout=STEP)).fence > holder.fence

    async def test_what_others_wrote_harms_no_other_name(self, world: World, raw: KazooClient, chroot: str) -> None:
        lease = await world.client().lock("ours").acquire(timeout=0)
        raw.create(f"{chroot}/default/%", b'{"odd-0": 3, "odd-1": {"fence": "x"}, "odd-2": {"fence": 2, "before": 3}}')
        for number, data in enumerate(ODD):
            raw.create(f"{chroot}/default/odd-{number}", data)
            raw.create(f"{chroot}/default/odd-{number}/{LIKE_OURS}", data)
            assert isinstance(await world.store.grant(world.ask(f"odd-{number}"), STEP), Busy)
            assert "another program" in str((await world.store.show(f"odd-{number}", STEP)).holder)
        found = await world.store.holders("", STEP)
        assert [holder.name for holder in found] == [*(f"odd-{number}" for number in range(len(ODD))), "ours"]
        for holder in found[:3]:
            assert await world.client().evict(holder.name, fence=holder.fence)
            assert (await world.store.show(holder.name, STEP)).evicted is not None
        await lease.release()

    async def test_all_nodes_deleted_is_a_loss_for_all_and_fences_rise(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        client = world.client()
        leases = [await client.lock(name).acquire(timeout=0) for name in "ab"]
        raw.delete(chroot, recursive=True)
        for lease in leases:
            with pytest.raises(LeaseLost):
                await lease.renew()
            assert lease.lost_reason is LossReason.TAKEN
            assert (await client.lock(lease.name).acquire(timeout=0)).fence > lease.fence
