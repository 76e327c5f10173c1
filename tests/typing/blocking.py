"""What type checkers say of the blocking API. Checked by mypy as a part of `make check`; nothing runs it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import assert_type

import dibs

client = dibs.connect("memory:", namespace="shop")
assert_type(client, dibs.Client)
lock = client.lock("a", ttl=timedelta(seconds=5), timeout=None, note="", max_hold=60.5, on_lost="flag")
assert_type(lock, dibs.Lock)
assert_type(lock.name, str)

with client as same, lock as lease:
    assert_type(same, dibs.Client)
    assert_type(lease, dibs.Lease)
    assert_type((lease.name, lease.token, lease.fence, lease.ttl, lease.note), tuple[str, str, int, float, str])
    assert_type(lease.lost, dibs.Loss)
    assert_type(lease.lost.wait(1), bool)
    assert_type(lease.lost_reason, dibs.LossReason | None)
    assert_type(lease.expires_in(), float)
    assert_type(lease.to_str(), str)
    assert_type(lease.detach(), str)
    with lease as again:
        assert_type(again, dibs.Lease)

with dibs.lock("nightly") as lease:
    assert_type(lease, dibs.Lease)

assert_type(lock.acquire(), dibs.Lease)
assert_type(lock.acquire(timeout=None), dibs.Lease)
assert_type(lock.acquire(timeout=timedelta(seconds=1)), dibs.Lease)
maybe = lock.try_acquire()
assert_type(maybe, dibs.Lease | None)
maybe.check()  # type: ignore[union-attr]  # it may be None: the checker must say so
assert_type(client.resume("text"), dibs.Lease)
assert_type(client.holders(), list[dibs.Holder])
assert_type(client.show("a"), dibs.LockState)
assert_type(client.show("a").evicted, dibs.Eviction | None)
assert_type(client.evict("a", fence=1), bool)
assert_type(client.inheritable(), tuple[int, ...])

client.lock("a", ttl="5")  # type: ignore[arg-type]
client.lock("a", on_lost="raise")  # type: ignore[arg-type]
client.lock("a", 30)  # type: ignore[call-arg]
client.evict("a", 1)  # type: ignore[call-arg]
lock.acquire(5)  # type: ignore[call-arg]


@client.locked("report:{day}")
def report(day: int, *, lease: dibs.Lease | None = None) -> str:
    return f"{day} {lease}"


@dibs.locked("report")
def plain(day: int) -> str:
    return str(day)


assert_type(report(3), str)
assert_type(plain(3), str)
report("monday")  # type: ignore[arg-type]
checked: Callable[[int], str] = plain

election = client.election("scheduler", ttl=timedelta(seconds=5), candidate="web-3", on_stuck="exit")
assert_type(election.is_leader(), float)
assert_type(election.leader(), dibs.Leader | None)
assert_type(next(election.watch(every=1)), dibs.Leader | None)
with election.lead(timeout=3) as term:
    assert_type(term, dibs.Term)
    assert_type((term.fence, term.candidate, term.lost, term.expires_in()), tuple[int, str, dibs.Loss, float])


def leads(term: dibs.Term) -> None:
    term.check()


election.run(leads)
election.run(report)  # type: ignore[arg-type]


@client.once("sync", every=900, retries=2)
def sync(day: int, *, run: dibs.Run | None = None) -> str:
    return f"{day} {run}"


assert_type(sync(3), str | None)
sync("monday")  # type: ignore[arg-type]
with client.once("sync", slot="v17") as run:
    assert_type((run.slot, run.attempt, run.lease), tuple[str, int, dibs.Lease])
client.once("sync", slot=17)  # type: ignore[arg-type]

try:
    lock.acquire()
except dibs.NotAcquired as refused:
    assert_type(refused.holder, dibs.Holder | None)
    assert_type(refused.waited, float)
except dibs.LeaseLost as lost:
    assert_type(lost.reason, dibs.LossReason)
