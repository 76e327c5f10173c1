"""How many locks of their own can many tasks, or many threads, of one process take and give back in Redis?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from pathlib import Path

from page import Aim, Answer, table, times
from redis_locks import (
    COREDIS,
    DIBS,
    DIBS_ASYNC,
    MITHRIL,
    POTTERY,
    POTTERY_ASYNC,
    PROTOCOL,
    PYTHON_REDIS_LOCK,
    RAW,
    REDIS_ASYNCIO,
    REDIS_PY,
    opened,
    opened_async,
    present,
)
from redis_server import RedisServer
from rounds import Scale, interleaved, median

TASKS, THREADS = 1000, 8

TASKS_AIM, THREADS_AIM = 10.0, 5.0

IN_LOOP = [PROTOCOL, DIBS_ASYNC, REDIS_ASYNCIO, COREDIS, POTTERY_ASYNC]
IN_THREADS = [RAW, DIBS, REDIS_PY, PYTHON_REDIS_LOCK, MITHRIL, POTTERY]


def measure(folder: Path, scale: Scale) -> Answer:
    """Cycles a second of all together."""
    seconds = 0.5 if scale.quick else 1.0
    with RedisServer(folder) as server, asyncio.Runner() as runner:
        tasks = {kind: lambda kind=kind: runner.run(in_tasks(kind, server.port, seconds)) for kind in present(IN_LOOP)}
        threads = {kind: lambda kind=kind: in_threads(kind, server.port, seconds) for kind in present(IN_THREADS)}
        gc.freeze()
        found_tasks = interleaved(tasks, scale.rounds)
        found_threads = interleaved(threads, scale.rounds)
    over_tasks = _times(found_tasks[DIBS_ASYNC], found_tasks[REDIS_ASYNCIO])
    over_threads = _times(found_threads[DIBS], found_threads[REDIS_PY])
    aims = [
        Aim(
            f"{TASKS:,} tasks, a lock each: {DIBS_ASYNC}, cycles/s over {REDIS_ASYNCIO}",
            f"≥ {TASKS_AIM:g}×",
            times(over_tasks),
            over_tasks >= TASKS_AIM,
        ),
        Aim(
            f"{THREADS} threads, a lock each: {DIBS}, cycles/s over {REDIS_PY}",
            f"≥ {THREADS_AIM:g}×",
            times(over_threads),
            over_threads >= THREADS_AIM,
        ),
    ]
    return Answer(
        [
            _table(f"{TASKS:,} tasks, each its own lock", found_tasks, REDIS_ASYNCIO),
            _table(f"{THREADS} threads, each its own lock", found_threads, REDIS_PY),
        ],
        aims,
    )


async def in_tasks(kind: str, port: int, seconds: float) -> float:
    """Cycles a second of many tasks."""
    async with opened_async(kind, port) as named:
        guards = [named(f"task {number}") for number in range(TASKS)]
        async with guards[0]():
            pass
        counts, until = [0] * TASKS, 0.0

        async def work(number: int) -> None:
            guard, now = guards[number], time.perf_counter
            while now() < until:
                async with guard():
                    counts[number] += 1

        began = time.perf_counter()
        until = began + seconds
        await asyncio.gather(*(work(number) for number in range(TASKS)))
        return sum(counts) / (time.perf_counter() - began)


def in_threads(kind: str, port: int, seconds: float) -> float:
    """Cycles a second of some threads, which share one client."""
    with opened(kind, port) as named:
        guards = [named(f"thread {number}") for number in range(THREADS)]
        for guard in guards:
            with guard():
                pass
        counts, until = [0] * THREADS, 0.0
        start = threading.Barrier(THREADS + 1)

        def work(number: int) -> None:
            guard, now, count = guards[number], time.perf_counter, 0
            start.wait()
            while now() < until:
                with guard():
                    count += 1
            counts[number] = count

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        with contextlib.ExitStack() as stack:
            for thread in threads:
                thread.start()
                stack.callback(thread.join)
            began = time.perf_counter()
            until = began + seconds
            start.wait()
        return sum(counts) / (time.perf_counter() - began)


def _times(mine: list[float], other: list[float]) -> float:
    return median(a / b for a, b in zip(mine, other, strict=True))


def _table(what: str, found: dict[str, list[float]], peer: str) -> str:
    rows = [
        [kind, f"{median(rates):,.0f}", times(_times(rates, found[peer]))]
        for kind, rates in sorted(found.items(), key=lambda item: -median(item[1]))
    ]
    return table([what, "cycles/s", f"over {peer}"], rows)
