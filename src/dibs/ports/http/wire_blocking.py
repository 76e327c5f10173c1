"""Connections for threads: a socket, used by one request at a time."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl

from dibs.ports.http.message import Conversation
from dibs.ports.http.source import Endpoint, Tls
from dibs.ports.http.wire import Clock, tls_context

CHUNK = 65_536
"""The most bytes that one call reads."""


class BlockingWire:
    """One socket and the conversation on it."""

    __slots__ = ("_now", "_poll", "_sock", "conversation")

    def __init__(self, sock: socket.socket, server: str, now: Clock) -> None:
        self.conversation = Conversation(server)
        self._sock, self._now = sock, now
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    async def send(self, data: bytes, until: float) -> None:
        """Send *data*; `TimeoutError` if that takes longer than until *until*."""
        self._limit(until)
        self._sock.sendall(data)

    async def hear(self, until: float) -> None:
        """Wait for more of the answer. A process that stood still reads what has arrived before it checks the time."""
        if until > self._now() or not self._poll.poll(0):
            self._limit(until)
        data = self._sock.recv(CHUNK)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self.conversation.feed(data)

    def is_stale(self) -> bool:
        """Whether the server closed the connection, or sent something although nothing was asked."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Close the connection for both sides: a thread that reads from it is woken."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def forked(self) -> None:
        """Close this process's descriptor; the connection is the parent's."""
        self._sock.close()

    def _limit(self, until: float) -> None:
        left = until - self._now()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)


class BlockingDial:
    """Opens connections that block the calling thread."""

    def __init__(self, tls: Tls | None, now: Clock) -> None:
        self._context, self._now = tls_context(tls) if tls else None, now

    async def __call__(self, endpoint: Endpoint, until: float) -> BlockingWire:
        """Connect to *endpoint*, at the first of its addresses that answers."""
        sock = self._connected(endpoint, until)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                sock = self._encrypted(self._context, sock, endpoint, until)
        except BaseException:
            sock.close()
            raise
        return BlockingWire(sock, str(endpoint), self._now)

    def _connected(self, endpoint: Endpoint, until: float) -> socket.socket:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            left = (until - self._now()) / (len(addresses) - number)
            if left <= 0:
                break
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(left)
                sock.connect(address)
            except BaseException as exc:
                sock.close()
                if not isinstance(exc, OSError) or number + 1 == len(addresses):
                    raise
            else:
                return sock
        raise TimeoutError

    def _encrypted(
        self, context: ssl.SSLContext, sock: socket.socket, endpoint: Endpoint, until: float
    ) -> socket.socket:
        left = until - self._now()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        return context.wrap_socket(sock, server_hostname=endpoint.host)
