"""One connection through the proxy: what is read on one side is written on the other, unless a fault says otherwise."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import weakref
from collections.abc import Sequence
from contextlib import suppress

from dibs.testing.proxy.faults import CutError, Direction, End, Fault

Address = tuple[str, int] | str
"""Host and port, or the path of a unix socket."""

READ = 1 << 18
"""Bytes of one read: more than a test's request or reply, so that each is seen whole."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for no time: closing sends a reset."""

_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def owned(sock: socket.socket) -> socket.socket:
    """Prepare a socket for the loop; forked children, which tests have, do not keep its connection open."""
    sock.setblocking(False)
    _ours.add(sock)
    return sock


def _close_all() -> None:
    for sock in list(_ours):
        sock.close()


os.register_at_fork(after_in_child=_close_all)


class Connection:
    """A client, the server, and one flow for each direction."""

    def __init__(self, client: socket.socket, server: Address, faults: Sequence[Fault]) -> None:
        self.faults = faults
        self._client, self._server, self._address = owned(client), owned(socket.socket(family(server))), server
        self._end: End = "fin"
        self.task = asyncio.create_task(self._serve())

    async def cut(self, end: End) -> None:
        """End it now; what is on the way is lost."""
        self._end = end
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _serve(self) -> None:
        try:
            await asyncio.get_running_loop().sock_connect(self._server, self._address)
            async with asyncio.TaskGroup() as tasks:
                for flow in self._flows():
                    tasks.create_task(flow.read())
                    tasks.create_task(flow.write())
        except* CutError as cuts:
            self._end = next(cut.end for cut in cuts.exceptions if isinstance(cut, CutError))
        except* OSError:
            self._end = "rst"  # as one side saw it, so the other shall
        finally:
            close(self._client, self._end)
            close(self._server, self._end)

    def _flows(self) -> list[Flow]:
        for sock in self._client, self._server:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # one write of ours is one packet
        return [
            Flow(self, "requests", self._client, self._server),
            Flow(self, "replies", self._server, self._client),
        ]


class Flow:
    """One direction of a connection."""

    def __init__(
        self, connection: Connection, direction: Direction, source: socket.socket, sink: socket.socket
    ) -> None:
        self.connection, self.direction = connection, direction
        self._source, self._sink = source, sink
        self._loop = asyncio.get_running_loop()
        self._on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read(self) -> None:
        """Take what comes at once, so that a delay is one of the wire and not of each read."""
        data = b"more"
        while data:
            data = await self._loop.sock_recv(self._source, READ)
            delay = sum(fault.delay(self.direction) for fault in self.connection.faults)
            self._on_the_way.put_nowait((self._loop.time() + delay, data))

    async def write(self) -> None:
        """Write what is due; the end of the stream keeps its place behind the bytes before it."""
        data = b"more"
        while data:
            due, data = await self._on_the_way.get()
            await asyncio.sleep(due - self._loop.time())
            left = await self._left_of(data)
            if left:
                await self.send(left)
        self._sink.shutdown(socket.SHUT_WR)

    async def send(self, data: bytes) -> None:
        """Write to the other side."""
        await self._loop.sock_sendall(self._sink, data)

    async def _left_of(self, data: bytes) -> bytes | None:
        left: bytes | None = data
        for fault in list(self.connection.faults):  # a copy: one may be lifted while another holds the bytes
            if left is not None and not fault.over:
                left = await fault.act(self, left)
        return left


def family(address: Address) -> socket.AddressFamily:
    """The kind of socket that reaches *address*."""
    if isinstance(address, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def close(sock: socket.socket, end: End) -> None:
    """Close a socket in one way or the other."""
    with suppress(OSError):  # the peer may have been first
        if end == "rst":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        else:
            sock.shutdown(socket.SHUT_RDWR)
    sock.close()
