"""How long does it take from the release of a lock in Redis until a waiter in another process has it?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import passing
from page import Answer, at_most, millis, table, times
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
from rounds import Scale, percentile, together

AIM = 1.6

HELD = (0.03, 0.15)
"""Seconds for which the lock is held before it is handed over: at random, so that pollers are met at any phase."""

KINDS = [FIFO, HINT, DIBS, DIBS_ASYNC, PYTHON_REDIS_LOCK, MITHRIL, REDIS_PY, POTTERY]


def measure(folder: Path, scale: Scale) -> Answer:
    """One holder, one waiter."""
    count = 5 if scale.quick else 20
    with RedisServer(folder) as server:
        rounds = scale.rounds if scale.quick else 7
        found = passing.passed(_named, present(KINDS), server.port, count, rounds, HELD)
    over = passing.over_one(found, FIFO)
    everything = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [kind, times(over[kind]), millis(percentile(took, 0.5)), millis(percentile(took, 0.99)), millis(max(took))]
        for kind, took in sorted(everything.items(), key=lambda item: over[item[0]])
    ]
    head = [f"hand-off in Redis, {len(everything[DIBS])} each", "p50 ratio", "p50, ms", "p99, ms", "worst, ms"]
    what = "hand-off to a waiter in another process, p50 over a raw FIFO"
    return Answer([table(head, rows)], [at_most(what, AIM, over[DIBS])])


@contextlib.contextmanager
def _named(kind: str, port: int) -> Iterator[passing.Guard]:
    """The lock of one *kind*."""
    with opened(kind, port) as named:
        yield named(f"handoff {kind}")
