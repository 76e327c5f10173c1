"""How long does it take from the release of a lock in Redis until a waiter in another process has it?"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from crew import partner
from page import Aim, Answer, millis, table, times
from redis_locks import (
    DIBS,
    DIBS_ASYNC,
    FIFO,
    HINT,
    MITHRIL,
    POTTERY,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    opened,
    present,
)
from redis_server import RedisServer
from rounds import Scale, interleaved, median, percentile, ratio, together

AIM = 1.6

HELD = (0.03, 0.15)
"""Seconds for which the lock is held before it is handed over: at random, so that pollers are met at any phase."""

KINDS = [FIFO, HINT, DIBS, DIBS_ASYNC, PYTHON_REDIS_LOCK, MITHRIL, REDIS_PY, POTTERY]


def measure(folder: Path, scale: Scale) -> Answer:
    """One holder, one waiter."""
    count = 5 if scale.quick else 20
    with RedisServer(folder) as server:
        runs = {kind: lambda kind=kind: handoffs(kind, server.port, count) for kind in present(KINDS)}
        found = interleaved(runs, scale.rounds if scale.quick else 7)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    over = {kind: ratio(middle[kind], middle[FIFO]) for kind in found}
    everything = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [kind, times(over[kind]), millis(percentile(took, 0.5)), millis(percentile(took, 0.99)), millis(max(took))]
        for kind, took in sorted(everything.items(), key=lambda item: over[item[0]])
    ]
    head = [f"hand-off in Redis, {len(everything[DIBS])} each", "p50 ratio", "p50, ms", "p99, ms", "worst, ms"]
    what = "hand-off to a waiter in another process, p50 over a raw FIFO"
    return Answer([table(head, rows)], [Aim(what, f"≤ {AIM:g}×", times(over[DIBS]), over[DIBS] <= AIM)])


def handoffs(kind: str, port: int, count: int) -> list[float]:
    """Hand the lock over *count* times; the seconds it took."""
    took = []
    waiter = partner(wait_again_and_again, kind, port)
    with opened(kind, port) as named:
        guard = named(f"handoff {kind}")
        waiter.recv()
        for _ in range(count):
            with guard():
                waiter.send(True)
                waiter.recv()  # it asks now
                time.sleep(random.uniform(*HELD))
                released_at = time.monotonic()
            took.append(waiter.recv() - released_at)
            waiter.recv()  # and has given it back
    waiter.send(False)
    return took


def wait_again_and_again(holder: Connection, kind: str, port: int) -> None:
    """Ask for the lock when the holder says so, and tell when it came."""
    with opened(kind, port) as named:
        guard = named(f"handoff {kind}")
        with guard():
            pass
        holder.send("ready")
        while holder.recv():
            holder.send("asking")
            with guard():
                got_it_at = time.monotonic()
            holder.send(got_it_at)
            holder.send("free")
