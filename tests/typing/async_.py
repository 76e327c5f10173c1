"""What type checkers say of the async API. Checked by mypy as a part of `make check`; nothing runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import assert_type

import dibs.aio as dibs


async def main() -> None:
    client = dibs.connect("memory:", namespace="shop")
    assert_type(client, dibs.Client)
    lock = client.lock("a", ttl=timedelta(seconds=5), timeout=None, max_hold=60.5, on_lost="flag")
    assert_type(lock, dibs.Lock)

    async with client as same, lock as lease:
        assert_type(same, dibs.Client)
        assert_type(lease, dibs.Lease)
        assert_type((lease.name, lease.token, lease.fence, lease.ttl, lease.note), tuple[str, str, int, float, str])
        assert_type(lease.lost, dibs.Loss)
        assert_type(await lease.lost.wait(1), bool)
        assert_type(lease.lost_reason, dibs.LossReason | None)
        assert_type(lease.expires_in(), float)
        assert_type(await lease.detach(), str)
        async with lease as again:
            assert_type(again, dibs.Lease)

    async with dibs.lock("nightly") as lease:
        assert_type(lease, dibs.Lease)

    with lock:  # type: ignore[attr-defined]
        pass

    assert_type(await lock.acquire(timeout=timedelta(seconds=1)), dibs.Lease)
    assert_type(await lock.try_acquire(), dibs.Lease | None)
    assert_type(await client.resume("text"), dibs.Lease)
    assert_type(await client.holders(), list[dibs.Holder])
    assert_type(await client.show("a"), dibs.LockState)
    assert_type(await client.evict("a", fence=1), bool)
    election = client.election("scheduler")
    async with election.lead() as term:
        assert_type(term, dibs.Term)
    async for leader in election.watch():
        assert_type(leader, dibs.Leader | None)
    async with client.once("sync", cron="0 3 * * *", tz="Europe/Berlin") as run:
        assert_type(run, dibs.Run)


@dibs.locked("report:{day}")
async def report(day: int, *, lease: dibs.Lease | None = None) -> str:
    return f"{day} {lease}"


checked: Callable[[int], Awaitable[str]] = report


async def use() -> None:
    assert_type(await report(3), str)
    await report("monday")  # type: ignore[arg-type]


@dibs.locked("report")  # type: ignore[arg-type]
def plain(day: int) -> str:
    return str(day)
