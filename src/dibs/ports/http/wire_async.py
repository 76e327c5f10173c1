"""Connections for an event loop: a transport, used by one request at a time."""

from __future__ import annotations

import asyncio
from typing import cast

from dibs.ports.fork import never_close
from dibs.ports.http.message import Conversation
from dibs.ports.http.source import Endpoint, Tls
from dibs.ports.http.wire import Clock, tls_context


class AsyncWire(asyncio.Protocol):
    """One transport. Only one task may wait for an answer at a time."""

    def __init__(self, server: str, now: Clock) -> None:
        self.conversation = Conversation(server)
        self._now = now
        self._transport: asyncio.Transport | None = None
        self._heard = False
        self._end: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def send(self, data: bytes, until: float) -> None:
        """Send *data*, or let it wait in the transport if the server does not take it at once."""
        if self._end is not None:
            raise self._end
        assert self._transport is not None
        self._transport.write(data)

    async def hear(self, until: float) -> None:
        """Wait for more of the answer. A loop that stood still reads what has arrived before it looks at the time."""
        if not self._heard and self._end is None:
            await self._news(until)
        if not self._heard and self._end is not None:
            raise self._end
        self._heard = False

    def is_stale(self) -> bool:
        """Whether the server closed the connection, or sent something although nothing was asked."""
        return self._heard or self._end is not None

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._over(ConnectionAbortedError("this client closed the connection"))

    def forked(self) -> None:
        """Keep the transport: to collect it would close the parent's socket, and touch the parent's loop."""
        never_close(self)

    # --- what the loop calls -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """The server sent *data*."""
        self.conversation.feed(data)
        self._heard = True
        self._wake()

    def eof_received(self) -> None:
        """The server closed the connection."""
        self._over(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended."""
        self._over(exc or ConnectionResetError("the server closed the connection"))

    async def _news(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(max(0.0, until - self._now()), self._too_late, self._waiting)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def _too_late(self, waiting: asyncio.Future[None]) -> None:
        if not waiting.done():
            waiting.set_exception(TimeoutError())

    def _over(self, exc: Exception) -> None:
        if self._end is None:
            self._end = exc
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class AsyncDial:
    """Opens connections in the running event loop."""

    def __init__(self, tls: Tls | None, now: Clock) -> None:
        self._context, self._now = tls_context(tls) if tls else None, now

    async def __call__(self, endpoint: Endpoint, until: float) -> AsyncWire:
        """Connect to *endpoint*, at the first of its addresses that answers."""
        loop, name = asyncio.get_running_loop(), str(endpoint)
        async with asyncio.timeout(max(0.0, until - self._now())):
            _, wire = await loop.create_connection(
                lambda: AsyncWire(name, self._now),
                endpoint.host,
                endpoint.port,
                ssl=self._context,
                server_hostname=endpoint.host if self._context else None,
            )
        return wire
