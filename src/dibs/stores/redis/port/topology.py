"""Which server keeps which key: always the same one, the master that sentinels name, or a cluster by its slots.

What is known is looked up without I/O; what is not is asked for within a budget. Nothing here sends a request of a
lock: it only learns from what came of it.
"""

from __future__ import annotations

import binascii
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from dibs.errors import StoreUnavailable
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.source import RedisAddress, RedisSource

SENTINEL_BUDGET = 0.5
"""Seconds that one sentinel or node may take to say where the master is, when there are others to ask."""


class RedisServer(Protocol):
    """One server, for threads or for an event loop."""

    address: RedisAddress
    name: str

    def call(self, data: bytes, within: float) -> Awaitable[Any]:
        """Send one command and return its reply; an error reply is returned, not raised."""

    async def calls(self, data: bytes, count: int, within: float) -> list[Any]:
        """Send *count* commands in one go and return their replies."""

    async def close(self) -> None:
        """Close the connections."""

    def forked(self) -> None:
        """Forget the parent's connections."""


Open = Callable[[RedisAddress], RedisServer]


class Map:
    """One server that never changes; the others build on it."""

    moves = False
    """Whether there may be another server for the same key later."""
    sharded = False
    """Whether a channel is heard only on the server of its slot."""

    def __init__(self, source: RedisSource, open_server: Open) -> None:
        self.source, self._open = source, open_server
        self._servers: dict[RedisAddress, RedisServer] = {}
        self._only: RedisServer | None = None

    def known(self, key: bytes) -> RedisServer | None:
        """The server of *key*, if it is known."""
        return self._only

    async def find(self, key: bytes, within: float) -> RedisServer:
        """The server of *key*, asked for if need be."""
        self._only = self.open(self.source.addresses[0], keep=True)
        return self._only

    async def masters(self, within: float) -> list[RedisServer]:
        """All servers that keep keys."""
        return [await self.find(b"", within)]

    def lost(self, server: RedisServer) -> bool:
        """Note that *server* could not be asked, or is no longer the right one; tell whether another one may be."""
        return False

    def moved(self, server: RedisServer, rest: str) -> RedisServer:
        """Note that *server* said that a slot is elsewhere; return the server that has it."""
        return server

    def at(self, server: RedisServer, rest: str) -> RedisServer:
        """The server at ``SLOT HOST:PORT``, as *server* says it."""
        host, _, port = rest.partition(" ")[2].rpartition(":")
        return self.open(RedisAddress(host or server.address.host, int(port)), keep=True)

    def all(self) -> Iterable[RedisServer]:
        """Every server that was ever used, to be closed."""
        return list(self._servers.values())

    def open(self, address: RedisAddress, *, keep: bool = False) -> RedisServer:
        """The server at *address*: the one we have, or (*keep* false) one with connections of its own."""
        if not keep:
            return self._open(address)
        server = self._servers.get(address)
        if server is None:
            server = self._servers.setdefault(address, self._open(address))
        return server


class Sentinels(Map):
    """The master of a service, which sentinels agree on."""

    moves = True

    def __init__(self, source: RedisSource, open_server: Open, open_sentinel: Open) -> None:
        super().__init__(source, open_server)
        self._sentinels = [open_sentinel(address) for address in source.addresses]

    async def find(self, key: bytes, within: float) -> RedisServer:
        """Ask one sentinel after the other."""
        ask = command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.source.service)
        problems = dict[str, BaseException]()
        each = min(SENTINEL_BUDGET, within / len(self._sentinels))
        for sentinel in list(self._sentinels):
            try:
                reply = await sentinel.call(ask, each)
            except StoreUnavailable as error:
                problems[sentinel.name] = error
                continue
            if isinstance(reply, list) and len(reply) == 2:
                self._sentinels.sort(
                    key=lambda known: known is not sentinel
                )  # the one that answered is asked first next time
                self._only = self.open(RedisAddress(reply[0].decode(), int(reply[1])), keep=True)
                return self._only
            problems[sentinel.name] = _no_master(sentinel, self.source.service, reply)
        raise StoreUnavailable(self.source.service, "no sentinel says where its master is", problems)

    def lost(self, server: RedisServer) -> bool:
        """Forget the master, so that the sentinels are asked again."""
        if self._only is server:
            self._only = None
        return True

    def all(self) -> Iterable[RedisServer]:
        """The servers and the sentinels."""
        return [*super().all(), *self._sentinels]


class Cluster(Map):
    """A cluster: each of its slots belongs to one node."""

    moves = True
    sharded = True

    def __init__(self, source: RedisSource, open_server: Open) -> None:
        super().__init__(source, open_server)
        self._slots: dict[int, RedisServer] = {}

    def known(self, key: bytes) -> RedisServer | None:
        """The node of the key's slot, if it is known. All our keys have their slot in braces or are whole."""
        return self._slots.get(slot(key))

    async def find(self, key: bytes, within: float) -> RedisServer:
        """Read the slots from any node that answers."""
        wanted = slot(key)
        problems = dict[str, BaseException]()
        addresses = dict.fromkeys((*self._servers, *self.source.addresses))
        for address in addresses:
            node = self.open(address, keep=True)
            try:
                reply = await node.call(command("CLUSTER", "SLOTS"), min(SENTINEL_BUDGET, within / len(addresses)))
            except StoreUnavailable as error:
                problems[node.name] = error
                continue
            if isinstance(reply, Exception):
                problems[node.name] = refused(node.name, reply)
                continue
            self._learn(node, reply)
            if wanted in self._slots:
                return self._slots[wanted]
            problems[node.name] = StoreUnavailable(node.name, f"no node serves slot {wanted}")
        raise StoreUnavailable("cluster", "no node says who keeps this lock", problems)

    async def masters(self, within: float) -> list[RedisServer]:
        """Every node that has slots."""
        await self.find(b"", within)
        return list({id(server): server for server in self._slots.values()}.values())

    def lost(self, server: RedisServer) -> bool:
        """Forget the slots of *server*, so that they are asked for again."""
        self._slots = {number: known for number, known in self._slots.items() if known is not server}
        return True

    def moved(self, server: RedisServer, rest: str) -> RedisServer:
        """Note where one slot is; the others are learnt the same way."""
        there = self.at(server, rest)
        self._slots[int(rest.partition(" ")[0])] = there
        return there

    def _learn(self, node: RedisServer, reply: list[Any]) -> None:
        slots = dict[int, RedisServer]()
        for first, last, (host, port, *_), *_ in reply:
            address = RedisAddress(host.decode() if host and host != b"?" else node.address.host, int(port))
            slots.update(dict.fromkeys(range(first, last + 1), self.open(address, keep=True)))
        self._slots = slots


def slot(key: bytes) -> int:
    """The cluster slot of *key*."""
    part = tagged(key)
    return binascii.crc_hqx(key if part is None else part, 0) % 16384


def tagged(key: bytes) -> bytes | None:
    """What stands in the first braces of *key* and decides its slot; None where the whole key does."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else None


def _no_master(sentinel: RedisServer, service: str, reply: Any) -> StoreUnavailable:
    if isinstance(reply, Exception):
        if str(reply).startswith("NOAUTH"):  # the URL may have that of the servers only
            problem = f"the sentinel wants a password of its own, as in ?sentinel_password=… ({reply})"
            return StoreUnavailable(sentinel.name, problem)
        return refused(sentinel.name, reply)
    return StoreUnavailable(sentinel.name, f"it knows no master called {service!r}")
