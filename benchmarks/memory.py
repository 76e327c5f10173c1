"""What does the core cost, without a store to speak of?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from pathlib import Path

import dibs
import dibs.aio
from page import Answer, micros, table, times
from rounds import Scale, interleaved, median, ratio, timed

FLOOR = "threading.Lock (floor)"


def measure(_folder: Path, scale: Scale) -> Answer:
    """The store `memory:`, blocking and async."""
    with dibs.connect("memory:") as client, asyncio.Runner() as runner:
        plain, lock = threading.Lock(), client.lock("x")
        blocks = {
            FLOOR: lambda: _middle(plain, scale.seconds),
            "dibs, memory:": lambda: _middle(lock, scale.seconds),
            "dibs, memory:, `async with`": lambda: runner.run(_async(scale.seconds)),
        }
        gc.freeze()
        found = interleaved(blocks, scale.rounds)
    rows = [[name, micros(median(took)), times(ratio(took, found[FLOOR]))] for name, took in found.items()]
    return Answer([table(["acquire + release in this process", "µs", "ratio"], rows)], [])


def _middle(lock: contextlib.AbstractContextManager[object], seconds: float) -> float:
    def cycle() -> None:
        with lock:
            pass

    return median(timed(cycle, seconds))


async def _async(seconds: float) -> float:
    now: Callable[[], float] = asyncio.get_running_loop().time
    took, until = [], now() + seconds
    async with dibs.aio.connect("memory:") as client:
        lock = client.lock("x")
        while (began := now()) < until:
            async with lock:
                pass
            took.append(now() - began)
    return median(took)
