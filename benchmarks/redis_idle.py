"""What is asked of a Redis server while many wait for one lock and nothing happens?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from page import Aim, Answer, table
from redis_locks import COREDIS, DIBS_ASYNC, REDIS_ASYNCIO, opened_async, present
from redis_server import RedisServer
from rounds import Scale

WAITERS = 1000

MOST = 5

CROWDS = [(DIBS_ASYNC, 1), (DIBS_ASYNC, 20), (DIBS_ASYNC, WAITERS), (REDIS_ASYNCIO, 1), (COREDIS, 1)]
"""The kind, and the number of clients that share the waiters: as many processes would have."""

SETTLING = 3.0
"""Seconds until all have asked."""


def measure(folder: Path, scale: Scale) -> Answer:
    """Counted by the server, with what keeps the lock of its holder."""
    seconds = 5.0 if scale.quick else 20.0
    crowds = [(kind, clients) for kind, clients in CROWDS if present([kind])]
    with RedisServer(folder) as server:
        found = [asyncio.run(idle(server, kind, clients, seconds)) for kind, clients in crowds]
    rows = [
        [kind, str(clients), f"{rate:,.1f}", str(connections)]
        for (kind, clients), (rate, connections) in zip(crowds, found, strict=True)
    ]
    head = [
        f"{WAITERS:,} tasks wait for one name",
        "clients",
        "commands/s, those inside scripts included",
        "connections",
    ]
    rate = found[0][0]
    what = f"{WAITERS:,} idle waiters of one process on one name: commands/s at the server"
    return Answer([table(head, rows)], [Aim(what, f"< {MOST}", f"{rate:.1f}", rate < MOST)])


async def idle(server: RedisServer, kind: str, clients: int, seconds: float) -> tuple[float, int]:
    """Commands a second, and connections."""
    async with contextlib.AsyncExitStack() as stack:
        each = [await stack.enter_async_context(opened_async(kind, server.port)) for _ in range(clients)]
        holder = (await stack.enter_async_context(opened_async(kind, server.port)))("idle")
        async with holder():
            tasks = [asyncio.create_task(_wait(each[number % clients]("idle"))) for number in range(WAITERS)]
            await asyncio.sleep(SETTLING)
            before, began = sum(server.commands().values()), time.monotonic()
            await asyncio.sleep(seconds)
            rate = (sum(server.commands().values()) - before) / (time.monotonic() - began)
            connections = server.connections()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return rate, connections


async def _wait(guard: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    async with guard():
        raise AssertionError("nobody gives it back")
