"""Talks to one Redis server from threads: each request has a connection of its own for as long as it takes.

Connections come from a stack without a lock, so threads never queue for one, and the one that was used last
is used first. A connection whose reply is still to come, for whatever reason we leave, is closed and never reused.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import hiredis

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.redis.port.dial import BlockingDialer, check_greeting
from dibs.stores.redis.port.parser import CHUNK, NOT_YET, new_parser
from dibs.stores.redis.port.source import RedisAddress

MOST_IDLE = 64
"""Connections that are kept while they are not in use."""

EARLY = 0.8
"""After this fraction of its time the kernel ends a receive; with its timers an eighth late that is still in time."""

STALE_AFTER = 0.01
"""Seconds without use after which a connection is looked at first. The look costs little, but lets other threads run,
and among many threads that is dear."""


class BlockingRedisConnection:
    """One connection: a socket and a parser, and what both do in every request."""

    __slots__ = ("_plain", "feed", "limited_to", "next", "receive", "send", "sock", "unread", "used_at")

    def __init__(self, sock: socket.socket) -> None:
        reader = new_parser()
        self.sock, self.send, self.receive = sock, sock.sendall, sock.recv
        self.feed, self.next = reader.feed, reader.gets
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self.unread = poll.poll
        self.used_at = 0.0
        self.limited_to = -1.0
        self._plain = not isinstance(sock, ssl.SSLSocket)
        if self._plain:
            sock.settimeout(None)

    def limit(self, seconds: float) -> None:
        """Let a send or a receive take no longer than *seconds* from now on; a plain socket gives up somewhat earlier.

        There the kernel watches the time, which spares a poll before each send and each receive. But its timers are
        coarse, up to an eighth late; so it is given less, and the rest is waited for with `more`.
        """
        self.limited_to = seconds
        seconds = max(seconds, 0.002)
        if self._plain:
            seconds *= EARLY
            span = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)
        else:
            self.sock.settimeout(seconds)

    def more(self, within: float) -> None:
        """Wait until there is something to read; `TimeoutError` after *within* seconds, to the millisecond."""
        if not self._plain:
            self.limit(within)  # what is decrypted already shows in no poll; its own wait is exact
        elif not self.unread(max(0.0, within) * 1000):
            raise TimeoutError

    def hang_up(self) -> None:
        """End the connection for both sides; a thread that is reading from it is woken."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this process's descriptor, without a word to the other side: it may belong to the parent too."""
        self.sock.close()


class BlockingServer:
    """One server and its connections, for threads."""

    def __init__(self, address: RedisAddress, dial: BlockingDialer, now: Callable[[], float]) -> None:
        self.address, self.name = address, str(address)
        self._dial, self._now = dial, now
        self._idle: list[BlockingRedisConnection] = []
        self._closed = False

    async def call(self, data: bytes, within: float) -> Any:
        """Send one command and return its reply; an error reply is returned, not raised."""
        began, idle = self._now(), self._idle
        # What `_take`, `exchange` and `_give` do, without a call: this is the lock path.
        try:
            connection = idle.pop()
            if began >= connection.used_at + STALE_AFTER:
                connection = self._sound(connection, began, within)
        except IndexError:
            connection = self.connect(began + within)
        try:
            if connection.limited_to != within:
                connection.limit(within)
            connection.send(data)
            try:
                connection.feed(connection.receive(CHUNK))
                reply = connection.next()
            except BlockingIOError:
                reply = NOT_YET
            if reply is NOT_YET:
                reply = self._rest(connection, began + within)
        except BaseException as exc:
            connection.close()
            if isinstance(exc, OSError | hiredis.ProtocolError):
                raise self._unknown(exc, within) from exc
            raise
        if self._closed or len(idle) >= MOST_IDLE:
            self._give(connection, began)
        else:
            connection.used_at = began
            idle.append(connection)
        return reply

    async def calls(self, data: bytes, count: int, within: float) -> list[Any]:
        """Send *count* commands in one go and return their replies."""
        began = self._now()
        connection = self._take(began, within)
        try:
            replies = self.exchange(connection, data, count, began + within)
        except BaseException:
            connection.close()
            raise
        self._give(connection, began)
        return replies

    def connect(self, until: float) -> BlockingRedisConnection:
        """A new connection, ready for use."""
        connection = BlockingRedisConnection(self._dial.socket(self.address, until - self._now()))
        try:
            hello = self._dial.greeting()
            if hello:
                check_greeting(self.name, self.exchange(connection, b"".join(hello), len(hello), until))
        except OutcomeUnknown as exc:  # nothing but a greeting was sent
            connection.close()
            raise StoreUnavailable(self.name, exc.problem) from exc
        except BaseException:
            connection.close()
            raise
        return connection

    def exchange(self, connection: BlockingRedisConnection, data: bytes, count: int, until: float) -> list[Any]:
        """Send *data* on *wire* and read *count* replies."""
        try:
            connection.limit(until - self._now())
            connection.send(data)
            return [self._rest(connection, until) for _ in range(count)]
        except (OSError, hiredis.ProtocolError) as exc:
            raise self._unknown(exc, until - self._now()) from exc

    async def close(self) -> None:
        """Close the connections; one in use is closed when its request is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """Forget the parent's connections. Closing our descriptors says nothing to the server."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, now: float, within: float) -> BlockingRedisConnection:
        try:
            return self._sound(self._idle.pop(), now, within)
        except IndexError:
            return self.connect(now + within)

    def _sound(self, connection: BlockingRedisConnection, now: float, within: float) -> BlockingRedisConnection:
        """*wire*, or another in its place.

        Something to read although nothing was asked is its end: a server that restarted, or closed what was idle. Found
        out now it costs half a µs. Found out by asking, the outcome of the request would be unknown.
        """
        if now < connection.used_at + STALE_AFTER or not connection.unread(0):
            return connection
        connection.close()
        return self._take(now, within)

    def _give(self, connection: BlockingRedisConnection, now: float) -> None:
        connection.used_at = now
        if len(self._idle) < MOST_IDLE and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    def _rest(self, connection: BlockingRedisConnection, until: float) -> Any:
        """The next reply, however many pieces it comes in."""
        while (reply := connection.next()) is NOT_YET:
            connection.more(until - self._now())
            piece = connection.receive(CHUNK)
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            connection.feed(piece)
        return reply

    def _unknown(self, exc: Exception, within: float) -> OutcomeUnknown:
        if isinstance(exc, TimeoutError | BlockingIOError):  # the second: a send that the kernel ended
            return OutcomeUnknown(self.name, f"no answer within {max(within, 0):.3g} s")
        return OutcomeUnknown(self.name, f"the connection broke: {exc}")
