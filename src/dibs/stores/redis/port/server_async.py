"""Talks to one Redis server from an event loop: all tasks share one connection, opened when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.fork import never_close
from dibs.stores.redis.port.dial import AsyncDialer, check_greeting
from dibs.stores.redis.port.pipeline_async import Pipeline
from dibs.stores.redis.port.protocol_async import AsyncRedisConnection
from dibs.stores.redis.port.source import RedisAddress

LONGEST_CONNECT = 5.0
"""Seconds that opening a connection may take, also if the task that asked for it has gone meanwhile."""


class AsyncServer:
    """One server and its connection, for the tasks of one event loop."""

    def __init__(self, address: RedisAddress, dial: AsyncDialer, now: Callable[[], float]) -> None:
        self.address, self.name = address, str(address)
        self._dial, self._now = dial, now
        self._pipeline: Pipeline | None = None
        self._opening: asyncio.Task[Pipeline] | None = None

    def call(self, data: bytes, within: float) -> Awaitable[Any]:
        """Send one command and return its reply; an error reply is returned, not raised."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.connection.is_over:
            return self._call_later(data, within)
        return pipeline.ask(data, self._now() + within)

    async def calls(self, data: bytes, count: int, within: float) -> list[Any]:
        """Send *count* commands in one go and return their replies."""
        until = self._now() + within
        pipeline = await self._opened(within)
        return await pipeline.ask_all(data, count, until)

    async def connect(self) -> AsyncRedisConnection:
        """A new connection, greeted."""
        hello, connection = await self._dial.greeting(), AsyncRedisConnection(self._now)
        connection.take_over(await self._dial.writer(self.address, LONGEST_CONNECT))
        greeting = Pipeline(self.name, connection, self._now)
        until = self._now() + LONGEST_CONNECT
        try:
            if hello:
                check_greeting(self.name, await greeting.ask_all(b"".join(hello), len(hello), until))
        except OutcomeUnknown as exc:  # nothing but a greeting was sent
            connection.abort()
            raise StoreUnavailable(self.name, exc.problem) from exc
        except BaseException:
            connection.abort()
            raise
        return connection

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
        if self._pipeline is not None:
            self._pipeline.connection.abort()
            await asyncio.wait([self._pipeline.connection.ended], timeout=1.0)

    def forked(self) -> None:
        """Forget the parent's connection and its loop; they are never collected, since that would close them."""
        never_close((self._pipeline, self._opening))
        self._pipeline = self._opening = None

    async def _call_later(self, data: bytes, within: float) -> Any:
        until = self._now() + within
        pipeline = await self._opened(within)
        return await pipeline.ask(data, until)

    async def _opened(self, within: float) -> Pipeline:
        """The connection, opened by a task of its own, since a task that waits for it may be cancelled."""
        if self._pipeline is not None and not self._pipeline.connection.is_over:
            return self._pipeline
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._is_open)
        pipeline: Pipeline = await outcome(self._opening, within, self.name)
        return pipeline

    async def _open(self) -> Pipeline:
        return Pipeline(self.name, await self.connect(), self._now)

    def _is_open(self, task: asyncio.Task[Pipeline]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._pipeline = task.result()


async def outcome(task: asyncio.Task[Any], within: float, name: str) -> Any:
    """The result of *task*, which opens a connection for many; it goes on if we stop waiting for it."""
    await asyncio.wait([task], timeout=within)
    if not task.done():
        raise StoreUnavailable(name, f"no connection within {within:.3g} s")
    if task.cancelled():
        raise StoreUnavailable(name, "this client was closed")
    error = task.exception()
    if error is not None:
        raise StoreUnavailable(name, getattr(error, "problem", str(error))) from error
    return task.result()
