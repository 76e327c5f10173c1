"""How fast does a lock in Redis change hands in a crowd of processes, and does everybody get a share?"""

from __future__ import annotations

import itertools
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from crew import crew
from page import Aim, Answer, table, times
from redis_locks import DIBS, FIFO, HINT, MITHRIL, PYTHON_REDIS_LOCK, REDIS_PY, opened, present
from redis_server import RedisServer
from rounds import Scale, interleaved, median

PROCESSES = 32

PART, FAIR = 1 / 3, 1.5

KINDS = [FIFO, HINT, DIBS, PYTHON_REDIS_LOCK, MITHRIL, REDIS_PY]


class Hammered(NamedTuple):
    """What a crowd of processes got."""

    cycles: float
    """A second, of all."""
    handoffs: float
    """Those of them where another process had the lock before."""
    spread: float
    """The largest share over the smallest."""


def measure(folder: Path, scale: Scale) -> Answer:
    """All begin at once, and the longest wait is the length of the line."""
    seconds = 1.5 if scale.quick else 4.0
    with RedisServer(folder) as server:
        runs = {kind: lambda kind=kind: hammered(kind, server.port, seconds) for kind in present(KINDS)}
        found = interleaved(runs, 1 if scale.quick else 5)
    part = {kind: _share([each.handoffs for each in got], found) for kind, got in found.items()}
    spread = {kind: median(each.spread for each in got) for kind, got in found.items()}
    rows = [
        [
            kind,
            f"{median(each.handoffs for each in got):,.0f}",
            times(part[kind]),
            f"{median(each.cycles for each in got):,.0f}",
            times(spread[kind]),
        ]
        for kind, got in sorted(found.items(), key=lambda item: -part[item[0]])
    ]
    head = [
        f"{PROCESSES} processes, one lock",
        "hand-offs/s",
        "of the raw FIFO",
        "cycles/s",
        "largest share / smallest",
    ]
    who = f"{PROCESSES} processes hammer one lock"
    aims = [
        Aim(f"{who}: hand-offs/s of those of a raw FIFO", f"≥ {PART:.2f}×", times(part[DIBS]), part[DIBS] >= PART),
        Aim(f"{who}: the largest share over the smallest", f"≤ {FAIR}×", times(spread[DIBS]), spread[DIBS] <= FAIR),
    ]
    return Answer([table(head, rows)], aims)


def _share(rates: list[float], found: dict[str, list[Hammered]]) -> float:
    return median(mine / floor.handoffs for mine, floor in zip(rates, found[FIFO], strict=True))


def hammered(kind: str, port: int, seconds: float) -> Hammered:
    """Let a crowd of processes take one lock as often as they can."""
    moments = crew(PROCESSES, hammer, kind, port, seconds)
    order = sorted((moment, number) for number, got in enumerate(moments) for moment in got)
    span = order[-1][0] - order[0][0]
    changes = sum(before[1] != after[1] for before, after in itertools.pairwise(order))
    shares = [len(got) for got in moments]
    return Hammered(len(order) / span, changes / span, max(shares) / max(1, min(shares)))


def hammer(_number: int, start: Barrier, kind: str, port: int, seconds: float) -> list[float]:
    """Take it and give it back, again and again; when it came."""
    now, moments = time.monotonic, []
    with opened(kind, port) as named:
        guard = named("crowd")
        with guard():
            pass
        start.wait()
        until = now() + seconds
        while now() < until:
            with guard():
                moments.append(now())
    return moments
