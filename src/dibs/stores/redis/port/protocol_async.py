"""One connection of an event loop: a transport that redis-py opened, and a parser. It knows no requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import hiredis

from dibs.stores.redis.port.parser import CHUNK, NOT_YET, new_parser


class AsyncRedisConnection(asyncio.BufferedProtocol):
    """Calls `received` with each reply, and `lost` once, when it is over."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.received: Callable[[Any], None] = _ignore
        self.lost: Callable[[Exception | None], None] = _ignore
        self.is_over = False
        self._now = now
        reader = new_parser()
        self._feed, self._next = reader.feed, reader.gets
        self._buffer = bytearray(CHUNK)  # once for each connection: asyncio would map and unmap memory for each read
        self._view = memoryview(self._buffer)
        self._writer: Any = None
        self.send: Callable[[bytes], None]
        self.heard_at = now()
        self.ended = asyncio.get_running_loop().create_future()

    def take_over(self, writer: Any) -> None:
        """Speak and listen on the transport of *writer* from now on."""
        self._writer = writer  # kept: it closes its transport when it goes
        self.send = writer.transport.write
        writer.transport.set_protocol(self)

    def abort(self, why: str = "this client closed it") -> None:
        """End the connection at once: `lost` is called. When the socket is closed, `ended` is set."""
        self._writer.transport.abort()
        self._end(ConnectionAbortedError(why))

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer into which the loop reads."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """The loop has read so much."""
        self.heard_at = self._now()
        try:
            self._feed(self._buffer, 0, nbytes)
            for reply in iter(self._next, NOT_YET):
                self.received(reply)
        except hiredis.ProtocolError as exc:
            self.abort(f"it sent what is no reply ({exc})")

    def eof_received(self) -> bool:
        """The server closed the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if not self.ended.done():
            self.ended.set_result(None)
        self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        self.is_over = True
        lost, self.lost, self.received = self.lost, _ignore, _ignore
        lost(exc)


def _ignore(nothing: object) -> None:
    """A callback for a connection that is over, or not yet in use."""
