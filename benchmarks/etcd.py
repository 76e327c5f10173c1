"""What does a lock in etcd cost over the bare transactions, how fast is it handed over, and what does a crowd cost?"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dibs
from dibs.ports.etcd import Etcd
from etcd_locks import AETCD, BARE, BARE_HTTPX, DIBS, DIBS_ASYNC, ETCD3GW, TOOZ, Guard, opened, present
from etcd_server import HOST, EtcdServer
from page import Aim, Answer, micros, millis, table, times
from passing import handoffs
from rounds import Scale, interleaved, median, percentile, ratio, timed, together

CYCLE_AIM, CALLS_AIM = 1.5, 5

CROWD = 32


def measure(_folder: Path, scale: Scale) -> Answer:
    """All on one server that writes to disk."""
    with EtcdServer() as server:
        cycles, cycle_aim = _cycles(server, scale)
        handoffs, handoff_aim = _handoffs(server, scale)
        return Answer([cycles, handoffs], [cycle_aim, handoff_aim, _crowd(server)])


def _cycles(server: EtcdServer, scale: Scale) -> tuple[str, Aim]:
    """Take a free lock and give it back."""
    kinds = present([BARE, BARE_HTTPX, DIBS, DIBS_ASYNC, AETCD, ETCD3GW, TOOZ])
    with contextlib.ExitStack() as stack:
        guards = {kind: stack.enter_context(opened(kind, server.port)) for kind in kinds}
        blocks = {kind: _block(guard, scale.seconds) for kind, guard in guards.items()}
        for block in blocks.values():
            block()
        gc.freeze()
        found = interleaved(blocks, scale.rounds)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[BARE]) for kind in kinds}
    rows = [[kind, times(over[kind]), micros(median(middle[kind]))] for kind in sorted(kinds, key=over.__getitem__)]
    what = "acquire + release in etcd over the bare transaction and delete"
    aim = Aim(what, f"≤ {CYCLE_AIM:g}×", times(over[DIBS]), over[DIBS] <= CYCLE_AIM)
    return table(["acquire + release in etcd", "ratio to the floor", "median, µs"], rows), aim


def _block(guard: Guard, seconds: float) -> Callable[[], list[float]]:
    def cycle() -> None:
        with guard():
            pass

    return lambda: timed(cycle, seconds)


def _handoffs(server: EtcdServer, scale: Scale) -> tuple[str, Aim]:
    """From a release in one process until a waiter in another has the lock."""
    count = 5 if scale.quick else 15
    kinds = present([DIBS, DIBS_ASYNC, AETCD, TOOZ])  # etcd3gw's lock does not wait: its block runs without it
    runs = {kind: functools.partial(handoffs, functools.partial(opened, kind, server.port), count) for kind in kinds}
    every = {kind: together(rounds) for kind, rounds in interleaved(runs, scale.rounds).items()}
    rows = [[kind, *(millis(percentile(took, part)) for part in (0.5, 0.99))] for kind, took in every.items()]
    rows.sort(key=lambda row: percentile(every[row[0]], 0.5))
    peer = min((percentile(every[kind], 0.5) for kind in (AETCD, TOOZ) if kind in every), default=float("inf"))
    found = percentile(every[DIBS], 0.5)
    aim = Aim(
        "hand-off to a waiter in another process, p50",
        f"≤ the best peer, {millis(peer)} ms",
        f"{millis(found)} ms",
        found <= peer,
    )
    return table([f"hand-off in etcd, {len(every[DIBS])} each", "p50, ms", "p99, ms"], rows), aim


def _crowd(server: EtcdServer) -> Aim:
    """Let many wait, each with a client of its own; the calls for each hand-over, whatever they are for."""
    calls = Counter[str]()
    call, watch = Etcd.call, Etcd.watch

    async def counted_call(self: Etcd, method: str, *rest: Any) -> Any:
        calls[method] += 1
        return await call(self, method, *rest)

    async def counted_watch(self: Etcd, *rest: Any) -> Any:
        calls["watch"] += 1
        return await watch(self, *rest)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(dibs.connect(f"etcd://{HOST}:{server.port}")) for _ in range(CROWD)]
        looking = stack.enter_context(dibs.connect(f"etcd://{HOST}:{server.port}"))
        lease = looking.lock("crowd").acquire()
        waiters = [threading.Thread(target=_hold_once, args=(client,)) for client in clients]
        for number, waiter in enumerate(waiters):
            waiter.start()
            while len(looking.show("crowd").waiting) <= number:
                time.sleep(0.005)
        Etcd.call, Etcd.watch = counted_call, counted_watch  # type: ignore[method-assign, assignment]
        try:
            lease.release()
            for waiter in waiters:
                waiter.join()
        finally:
            Etcd.call, Etcd.watch = call, watch  # type: ignore[method-assign]
    each = calls.total() / CROWD
    return Aim(f"calls for each hand-over among {CROWD} waiters", f"≤ {CALLS_AIM}", f"{each:.1f}", each <= CALLS_AIM)


def _hold_once(client: dibs.Client) -> None:
    with client.lock("crowd"):
        pass
