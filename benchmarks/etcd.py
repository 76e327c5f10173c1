"""What does a lock in etcd cost over the bare transactions, how fast is it handed over, and what does a crowd cost?"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import passing
import uncontended
from crowd import calls_for_each
from dibs.stores.etcd.port.gateway import Etcd
from etcd_locks import AETCD, BARE, BARE_HTTPX, DIBS, DIBS_ASYNC, ETCD3GW, TOOZ, opened, present
from etcd_server import EtcdServer
from page import Aim, Answer, at_most
from rounds import Scale, ratio

CYCLE_AIM, CALLS_AIM = 1.5, 5


def measure(_folder: Path, scale: Scale) -> Answer:
    """All on one server that writes to disk."""
    with EtcdServer() as server:
        cycles, cycle_aim = _cycles(server, scale)
        handoffs, handoff_aim = _handoffs(server, scale)
        return Answer([cycles, handoffs], [cycle_aim, handoff_aim, calls_for_each(server.url, _counted(), CALLS_AIM)])


def _cycles(server: EtcdServer, scale: Scale) -> tuple[str, Aim]:
    """Take a free lock and give it back."""
    kinds = present([BARE, BARE_HTTPX, DIBS, DIBS_ASYNC, AETCD, ETCD3GW, TOOZ])
    middle = uncontended.cycles(opened, kinds, server.port, scale)
    over = {kind: ratio(middle[kind], middle[BARE]) for kind in kinds}
    aim = at_most("acquire + release in etcd over the bare transaction and delete", CYCLE_AIM, over[DIBS])
    return uncontended.shown("etcd", sorted(kinds, key=over.__getitem__), middle, over), aim


def _handoffs(server: EtcdServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    kinds = present([DIBS, DIBS_ASYNC, AETCD, TOOZ])  # etcd3gw's lock does not wait: its block runs without it
    found = passing.passed(opened, kinds, server.port, 5 if scale.quick else 15, scale.rounds)
    return passing.against_peers("etcd", found, DIBS, [AETCD, TOOZ])


@contextlib.contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count the calls of every client, and each watch."""
    calls = Counter[str]()
    call, watch = Etcd.call, Etcd.watch

    async def counted_call(self: Etcd, method: str, *rest: Any) -> Any:
        calls[method] += 1
        return await call(self, method, *rest)

    async def counted_watch(self: Etcd, *rest: Any) -> Any:
        calls["watch"] += 1
        return await watch(self, *rest)

    Etcd.call, Etcd.watch = counted_call, counted_watch  # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        Etcd.call, Etcd.watch = call, watch  # type: ignore[method-assign]
