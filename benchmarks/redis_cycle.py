"""What does it cost one caller to take a free lock in Redis and give it back?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from page import Aim, Answer, at_most, micros, table, times
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
    Named,
    opened,
    opened_async,
    present,
)
from redis_server import ANYWHERE, RedisServer
from rounds import Scale, interleaved, median, ratio, timed

BLOCKING = [RAW, DIBS, REDIS_PY, PYTHON_REDIS_LOCK, POTTERY, MITHRIL]
IN_LOOP = [PROTOCOL, DIBS_ASYNC, REDIS_ASYNCIO, POTTERY_ASYNC, COREDIS]

PLACES = {"one core": {0}, "both cores": ANYWHERE}

Block = Callable[[], list[float]]


def measure(folder: Path, scale: Scale) -> Answer:
    """Client and server on one core, and wherever the system puts them: all in the same rounds."""
    with RedisServer(folder) as server, contextlib.ExitStack() as stack:
        blocks: dict[str, Block] = {}
        for kind in present(BLOCKING):
            named = stack.enter_context(opened(kind, server.port))
            for place in PLACES:
                blocks[f"{kind}/{place}"] = _blocking(server, named, place, scale.seconds)
        runner = stack.enter_context(asyncio.Runner())
        for kind in present(IN_LOOP):
            for place in PLACES:
                blocks[f"{kind}/{place}"] = _async(server, runner, kind, place, scale.seconds)
        for block in blocks.values():
            block()
        gc.freeze()  # what the libraries are made of is not looked through again for each of the others
        found = interleaved(blocks, scale.rounds)
        server.run_on(ANYWHERE)
    middle = {name: [median(took) for took in rounds] for name, rounds in found.items()}
    return Answer([_table(middle, BLOCKING), _table(middle, IN_LOOP)], _aims(middle))


def _blocking(server: RedisServer, named: Named, place: str, seconds: float) -> Block:
    guard = named("cycle")

    def cycle() -> None:
        with guard():
            pass

    def block() -> list[float]:
        server.run_on(PLACES[place])
        cycle()
        return timed(cycle, seconds)

    return block


def _async(server: RedisServer, runner: asyncio.Runner, kind: str, place: str, seconds: float) -> Block:
    async def cycles() -> list[float]:
        now, took = time.perf_counter, []
        async with opened_async(kind, server.port) as named:
            guard = named("cycle")
            for _ in range(20):
                async with guard():
                    pass
            until = now() + seconds
            while (began := now()) < until:
                async with guard():
                    pass
                took.append(now() - began)
        return took

    def block() -> list[float]:
        server.run_on(PLACES[place])
        return runner.run(cycles())

    return block


def _table(middle: Mapping[str, list[float]], kinds: list[str]) -> str:
    floor, rows = kinds[0], []
    for kind in present(kinds):
        row = [kind]
        for place in PLACES:
            took = middle[f"{kind}/{place}"]
            row += [times(ratio(took, middle[f"{floor}/{place}"])), micros(median(took))]
        rows.append(row)
    rows.sort(key=lambda row: float(row[2].replace(",", "")))
    head = ["acquire + release in Redis, nobody else wants it"]
    return table(head + [f"{place}, {what}" for place in PLACES for what in ("ratio", "µs")], rows)


def _aims(middle: Mapping[str, list[float]]) -> list[Aim]:
    """On one core; across cores the wake-up, which is the machine's, hides what the library costs."""
    pairs = [(DIBS, REDIS_PY, 0.5), (DIBS, RAW, 2.0), (DIBS_ASYNC, REDIS_ASYNCIO, 0.5)]
    found = [(mine, other, limit, _over(middle, mine, other)) for mine, other, limit in pairs]
    return [
        at_most(f"acquire + release on one core: {mine}, over {other}", limit, over)
        for mine, other, limit, over in found
    ]


def _over(middle: Mapping[str, list[float]], mine: str, other: str) -> float:
    return ratio(middle[f"{mine}/one core"], middle[f"{other}/one core"])
