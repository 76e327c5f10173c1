"""Sends scripts to the server that keeps their keys, and follows it when it moves: the same in threads and event loops.

Only what certainly did not happen is sent again from here: a script the server did not know, a key it does not keep.
What may have happened goes back to the caller as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.redis.port.command import Script, command
from dibs.stores.redis.port.dial import MEMORY, warn_of_eviction
from dibs.stores.redis.port.errors import code_of, refused
from dibs.stores.redis.port.topology import Map, RedisServer

MOST_TRIES = 8
"""Times that one request is sent on to another node, before we say that the cluster is in disorder."""

PAUSE = 0.02
"""Seconds before a request goes again to servers that are just changing their roles."""

CHANGING = ("TRYAGAIN", "READONLY", "MASTERDOWN")
"""Answers of servers that will give another one soon, if there are others to ask."""


class ScriptCall(NamedTuple):
    """One call of a script."""

    key: bytes
    """One of its keys, to find the server by."""
    script: Script
    data: bytes


class Found(NamedTuple):
    """What a key holds, at some moment."""

    value: bytes | None
    """None if it is no string."""
    left_ms: int
    """Its ttl; -1 if it has none, -2 if the key is gone meanwhile."""
    now_us: int


class Route:
    """All servers of one store."""

    def __init__(self, servers: Map, runtime: Runtime) -> None:
        self.map, self._runtime = servers, runtime
        self._lanes: dict[str, RedisServer] = {}

    async def call(self, key: bytes, script: Script, data: bytes, within: float) -> Any:
        """Run one call of *script* and return its answer; raise if it is an error."""
        server = self.map.known(key)
        if server is None:
            return await self._search(ScriptCall(key, script, data), within)
        try:
            reply = await server.call(data, within)
        except StoreUnavailable as error:
            return await self._after(error, server, ScriptCall(key, script, data), within)
        if reply.__class__ is hiredis.ReplyError:
            return await self._follow(server, ScriptCall(key, script, data), reply, within)
        return reply

    async def calls(self, requests: Sequence[ScriptCall], within: float) -> list[Any]:
        """Run many scripts, in one go for each server; an answer is a `StoreUnavailable` where none came."""
        until = self._runtime.now() + within
        answers: list[Any] = [None] * len(requests)
        groups: dict[int, tuple[RedisServer, list[int]]] = {}
        for index, request in enumerate(requests):
            server = self.map.known(request.key)
            if server is None:
                answers[index] = await self._caught(request, until)
            else:
                groups.setdefault(id(server), (server, []))[1].append(index)
        for still, (server, indexes) in zip(range(len(groups), 0, -1), groups.values(), strict=True):
            share = self._runtime.now() + self._left(until) / still  # one that is silent leaves time for the others
            await self._group(server, [(index, requests[index]) for index in indexes], answers, share)
        return answers

    async def pipeline(self, key: bytes, commands: Sequence[bytes], within: float) -> list[Any]:
        """Send plain commands to the server of *key* on a connection of their own, so that they hold up no request."""
        until = self._runtime.now() + within
        server = self.map.known(key) or await self.map.find(key, within)
        lane = self._lanes.get(server.name)
        if lane is None:
            lane = self._lanes[server.name] = self.map.open(server.address)
        return await lane.calls(b"".join(commands), len(commands), until - self._runtime.now())

    async def scan(self, pattern: bytes, within: float) -> dict[bytes, Found]:
        """The keys that match *pattern*, and their values."""
        until, found = self._runtime.now() + within, dict[bytes, Found]()
        for server in await self.map.masters(within):
            cursor = b"0"
            while True:
                ask = command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
                [reply] = self._good(server, [await server.call(ask, self._left(until))])
                cursor, keys = reply
                found.update(await self._read(server, keys, until))
                if cursor == b"0":
                    break
        return found

    async def close(self) -> None:
        """Close all connections."""
        for server in (*self.map.all(), *self._lanes.values()):
            await server.close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        for server in (*self.map.all(), *self._lanes.values()):
            server.forked()

    async def _search(self, request: ScriptCall, within: float) -> Any:
        """Find the server, and send the request to it."""
        until = self._runtime.now() + within
        server = self.map.known(request.key) or await self.map.find(request.key, within)
        reply, memory = await server.calls(request.data + MEMORY, 2, self._left(until))
        warn_of_eviction(server.name, memory)
        if isinstance(reply, hiredis.ReplyError):
            return await self._follow(server, request, reply, self._left(until))
        return reply

    async def _after(self, error: StoreUnavailable, server: RedisServer, request: ScriptCall, within: float) -> Any:
        """Ask again after *error*, if another server has taken the place of *server*."""
        began = self._runtime.now()
        moves = self.map.lost(server)
        if isinstance(error, OutcomeUnknown) or not moves:
            raise error
        other = await self.map.find(request.key, within)
        if other.name == server.name:
            raise error
        reply = await other.call(request.data, within - (self._runtime.now() - began))
        if isinstance(reply, hiredis.ReplyError):
            return await self._follow(other, request, reply, within)
        return reply

    async def _follow(self, server: RedisServer, request: ScriptCall, reply: Any, within: float) -> Any:
        """Send a request again that was refused because it came to the wrong server, or to one without the script.

        A slot on its way from node to node answers TRYAGAIN until all keys of the lock are in one place, which is soon.
        """
        until, data, tries = self._runtime.now() + within, request.data, 0
        while isinstance(reply, hiredis.ReplyError):
            code, rest = code_of(reply), str(reply).partition(" ")[2]
            tries += 1
            if self._runtime.now() >= until:
                raise refused(server.name, reply)
            if code == "NOSCRIPT" and data is request.data:
                data = request.script.in_full(data)
                reply = await server.call(data, self._left(until))
            elif code == "MOVED" and self.map.moves and tries < MOST_TRIES:
                server = self.map.moved(server, rest)
                reply = await server.call(data, self._left(until))
            elif code == "ASK" and self.map.moves:
                # In full: that node may not have the script, and a second ASKING would be needed to find out.
                both = command("ASKING") + request.script.in_full(request.data)
                reply = (await self.map.at(server, rest).calls(both, 2, self._left(until)))[1]
            elif code in CHANGING and self.map.moves:
                self.map.lost(server)
                await self._runtime.sleep(min(PAUSE, self._left(until)))
                server = await self.map.find(request.key, self._left(until))
                reply = await server.call(data, self._left(until))
            else:
                raise refused(server.name, reply, keys_of(request.data))
        return reply

    async def _group(
        self, server: RedisServer, requests: list[tuple[int, ScriptCall]], answers: list[Any], until: float
    ) -> None:
        try:
            data = b"".join(request.data for _, request in requests)
            replies = await server.calls(data, len(requests), self._left(until))
        except StoreUnavailable as error:
            moves = self.map.lost(server) and not isinstance(error, OutcomeUnknown)
            for index, request in requests:
                answers[index] = await self._caught(request, until) if moves else error
            return
        for (index, request), reply in zip(requests, replies, strict=True):
            answers[index] = reply
            if isinstance(reply, hiredis.ReplyError):
                answers[index] = await self._caught(request, until, server, reply)

    async def _caught(
        self, request: ScriptCall, until: float, server: RedisServer | None = None, reply: Any = None
    ) -> Any:
        try:
            if server is None:
                return await self._search(request, self._left(until))
            return await self._follow(server, request, reply, self._left(until))
        except StoreUnavailable as error:
            return error

    async def _read(self, server: RedisServer, keys: Sequence[bytes], until: float) -> dict[bytes, Found]:
        """The value and the ttl of each key, by key."""
        asks = [ask for key in keys for ask in (command("GET", key), command("PTTL", key))]
        data = b"".join([*asks, command("TIME")])
        *replies, time = await server.calls(data, len(asks) + 1, self._left(until))
        now_us = int(time[0]) * 1_000_000 + int(time[1])
        pairs = zip(keys, replies[::2], replies[1::2], strict=True)
        found = dict[bytes, Found]()
        for key, value, left in pairs:
            if isinstance(value, bytes):
                found[key] = Found(value, left, now_us)
            elif str(value).startswith("WRONGTYPE"):
                found[key] = Found(None, left, now_us)
        return found

    def _good(self, server: RedisServer, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise refused(server.name, reply)
        return replies

    def _left(self, until: float) -> float:
        return max(0.001, until - self._runtime.now())


def keys_of(call: bytes) -> list[bytes]:
    """The keys in *call*, one call of a script."""
    reader = hiredis.Reader()
    reader.feed(call)
    words = reader.gets()
    return list(words[3 : 3 + int(words[2])])
