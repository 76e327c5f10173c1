"""The one subscription that a client has at a server, for an event loop: messages come in as callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hiredis

from dibs.errors import StoreUnavailable
from dibs.ports.fork import never_close
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.hints import Hints, WakeHint
from dibs.stores.redis.port.protocol_async import AsyncRedisConnection
from dibs.stores.redis.port.server_async import AsyncServer, outcome
from dibs.stores.redis.port.subscriber_blocking import QUIET


class AsyncSubscriber:
    """The connection of one client to one server on which its waiters are called."""

    def __init__(self, server: AsyncServer, hints: Hints, now: Callable[[], float]) -> None:
        self._server, self.hints, self._now = server, hints, now
        self._connection: AsyncRedisConnection | None = None
        self._opening: asyncio.Task[AsyncRedisConnection] | None = None
        self._heard_at = self._pinged_at = 0.0

    async def subscribe(self, channel: bytes, within: float) -> None:
        """Return when messages on *channel* are sure to come from now on; raise `StoreUnavailable` if they will not."""
        if channel in self.hints.confirmed:
            return
        until = self._now() + within
        connection = self._connection or await self._opened(within)
        if connection.is_over:
            raise StoreUnavailable(self._server.name, "the subscription broke")
        hint, data = self.hints.subscribing(channel)
        connection.send(data)
        await hint.event.wait(max(0.0, until - self._now()))
        if isinstance(hint.problem, hiredis.ReplyError):
            raise refused(self._server.name, hint.problem)
        if channel not in self.hints.confirmed:
            raise StoreUnavailable(self._server.name, f"no subscription: {hint.problem or 'no answer in time'}")

    async def wait(self, hint: WakeHint, within: float) -> None:
        """Return when *hint* says that it is worth asking, or after *within* seconds."""
        until = self._now() + within
        self._check_pulse()
        while (left := min(until, hint.ask_at) - self._now()) > 0:
            hint.event.clear()
            await hint.event.wait(left)

    def let_go(self, channel: bytes) -> None:
        """Unsubscribe from *channel*, which its last waiter has left."""
        if self._connection is not None:
            self._connection.send(command("SUNSUBSCRIBE", channel))

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            connection = self._connection
            connection.abort()
            await asyncio.wait([connection.ended], timeout=1.0)

    def forked(self) -> None:
        """Forget the parent's connection."""
        never_close(self._connection)
        self._connection = self._opening = None

    async def _opened(self, within: float) -> AsyncRedisConnection:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._is_open)
        connection: AsyncRedisConnection = await outcome(self._opening, within, self._server.name)
        return connection

    async def _open(self) -> AsyncRedisConnection:
        connection = await self._server.connect()
        connection.received, connection.lost = self._received, self._lost
        return connection

    def _is_open(self, task: asyncio.Task[AsyncRedisConnection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._heard_at, self._pinged_at = self._now(), 0.0
            self._connection = None if task.result().is_over else task.result()

    def _received(self, reply: object) -> None:
        self._heard_at, self._pinged_at = self._now(), 0.0
        self.hints.message(reply)

    def _lost(self, exc: Exception | None) -> None:
        self._connection = None
        self.hints.broke(exc or ConnectionResetError("the server closed the connection"))

    def _check_pulse(self) -> None:
        now = self._now()
        if self._connection is None or now < self._heard_at + QUIET:
            return
        if not self._pinged_at:
            self._pinged_at = now
            self._connection.send(command("PING"))
        elif now > self._pinged_at + QUIET:
            self._connection.abort()
