"""The least that a lock in Redis can cost: bytes that were made beforehand on a bare socket, with nothing checked.

Three shapes: take it if it is free, with a fence, and give it back if it is ours; the same with a line of waiters,
where whoever gives it back hands it to the first, who sleeps in BLPOP; and with a line whose first is called and then
asks itself, as dibs does it: so nobody has the lock who does not know it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any

from redis_server import HOST, Plain, encoded

TAKE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return redis.call('INCR', KEYS[2]) end
return 0
"""

FREE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

TAKE_OR_QUEUE = """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) then return redis.call('INCR', KEYS[2]) end
redis.call('RPUSH', KEYS[3], ARGV[1])
return 0
"""

HAND_ON = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local first = redis.call('LPOP', KEYS[3])
if not first then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], first, 'PX', 30000)
redis.call('RPUSH', first, redis.call('INCR', KEYS[2]))
return 1
"""

CALL_NEXT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local first = redis.call('LPOP', KEYS[3])
if first then redis.call('PUBLISH', first, 'now') end
return 1
"""

EXTEND = """
local held = 0
for _, lock in ipairs(KEYS) do
  if redis.call('GET', lock) == ARGV[1] then held = held + redis.call('PEXPIRE', lock, ARGV[2]) end
end
return held
"""


def calls(port: int, name: str, token: str, *scripts: str) -> list[bytes]:
    """One prepared call for each script."""
    keys = [f"floor:{{{name}}}", f"floor:{{{name}}}:fence", f"floor:{{{name}}}:line"]
    plain = Plain(port)
    found = [encoded("EVALSHA", plain("SCRIPT", "LOAD", script), "3", *keys, token) for script in scripts]
    plain.close()
    return found


class RawLock:
    """One bare socket: no waiting."""

    def __init__(self, port: int, name: str, token: str) -> None:
        self._take, self._free = calls(port, name, token, TAKE, FREE)
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send, self._receive = self._socket.sendall, self._socket.recv

    def __enter__(self) -> None:
        self._send(self._take)
        self._receive(4096)

    def __exit__(self, *error: object) -> None:
        self._send(self._free)
        self._receive(4096)

    def close(self) -> None:
        self._socket.close()


class FifoLock(RawLock):
    """One bare socket: waits in line, and is handed the lock."""

    def __init__(self, port: int, name: str, token: str) -> None:
        super().__init__(port, name, token)
        self._take, self._free = calls(port, name, token, TAKE_OR_QUEUE, HAND_ON)
        self._sleep = encoded("BLPOP", token, "0")

    def __enter__(self) -> None:
        self._send(self._take)
        if self._receive(4096) == b":0\r\n":
            self._send(self._sleep)
            self._receive(4096)


class HintLock(RawLock):
    """Two bare sockets: waits in line, is called, and takes the lock."""

    def __init__(self, port: int, name: str, token: str) -> None:
        super().__init__(port, name, token)
        self._ask, self._free = calls(port, name, token, TAKE_OR_QUEUE, CALL_NEXT)
        self._ear = socket.create_connection((HOST, port))
        self._ear.sendall(encoded("SUBSCRIBE", token))
        self._ear.recv(4096)

    def __enter__(self) -> None:
        while True:
            self._send(self._ask)
            if self._receive(4096) != b":0\r\n":
                return
            self._ear.recv(4096)

    def close(self) -> None:
        self._ear.close()
        super().close()


class Multiplexed(asyncio.BufferedProtocol):
    """One connection for all tasks of a loop; what they send in one turn leaves in one write."""

    def __init__(self) -> None:
        self._buffer = bytearray(65536)
        self._waiting = deque[asyncio.Future[None]]()
        self._outbox: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self._write = transport.write

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        for _ in range(self._buffer.count(b"\n", 0, nbytes)):
            self._waiting.popleft().set_result(None)

    def call(self, data: bytes) -> asyncio.Future[None]:
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        self._write(b"".join(self._outbox))
        self._outbox.clear()


class AsyncRawLock:
    """A lock over it: no waiting."""

    def __init__(self, protocol: Multiplexed, prepared: list[bytes]) -> None:
        self._call = protocol.call
        self._take, self._free = prepared

    async def __aenter__(self) -> None:
        await self._call(self._take)

    async def __aexit__(self, *error: object) -> None:
        await self._call(self._free)
