"""How a waiter is told that it is its turn: which channel it is called on, and what it does where it has none.

One server: one channel for each client, so that one subscription serves all its waiters and PUBLISH answers 0 when the
client is gone. In a cluster PUBLISH counts only clients that listen on the same node, so there is a channel for each
lock, in its slot, on the node that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dibs.errors import StoreUnavailable
from dibs.log import logger
from dibs.runtime import Runtime
from dibs.stores.redis.port.hints import Hints, WakeHint
from dibs.stores.redis.port.topology import Map, RedisServer

POLL = 0.09
"""Seconds after which a waiter without a channel asks again: within the reservation, so that it gets its turn."""


class Subscriber(Protocol):
    """The subscription of one client at one server, for threads or for an event loop."""

    hints: Hints

    async def subscribe(self, channel: bytes, within: float) -> None:
        """Return when messages on *channel* are sure to come from now on; raise `StoreUnavailable` if they will not."""

    async def wait(self, hint: WakeHint, within: float) -> None:
        """Return when *hint* says that it is worth asking, or after *within* seconds."""

    def let_go(self, channel: bytes) -> None:
        """Unsubscribe from *channel*, which its last waiter has left."""

    async def close(self) -> None:
        """Close the connection."""

    def forked(self) -> None:
        """Forget the parent's connection."""


class Subscriptions:
    """All subscriptions of one client."""

    def __init__(
        self, servers: Map, open_subscriber: Callable[[RedisServer, Hints], Subscriber], runtime: Runtime
    ) -> None:
        self._map, self._open_subscriber, self._runtime = servers, open_subscriber, runtime
        self._told = False
        self._start()

    def _start(self) -> None:
        self._client = self._runtime.token()
        self._subscribers: dict[str, Subscriber] = {}
        self._where: dict[str, Subscriber] = {}  # token to the subscriber that it is called by

    async def expect(self, key: bytes, token: str, within: float) -> bytes:
        """Listen for *token*, which will wait for the lock *key*; return the channel, empty if there is none."""
        try:
            server = self._map.known(key) or await self._map.find(key, within)
            subscriber = self._subscribers.get(server.name)
            if subscriber is None:
                hints = Hints(self._runtime, sharded=self._map.sharded)
                subscriber = self._subscribers.setdefault(server.name, self._open_subscriber(server, hints))
            channel = b"%b:wake:%b" % (key if self._map.sharded else b"dibs", self._client.encode())
            subscriber.hints.expect(token, channel)  # before we subscribe: no message is missed
            self._where[token] = subscriber
            await subscriber.subscribe(channel, within)
        except StoreUnavailable as error:
            self.forget(token)
            self._tell(error)
            return b""
        return channel

    async def wait(self, token: str, within: float) -> None:
        """Return when it is worth asking again with *token*, or after *within* seconds."""
        subscriber = self._where.get(token)
        hint = subscriber.hints.get(token) if subscriber is not None else None
        if subscriber is None or hint is None:
            await self._runtime.sleep(min(within, POLL))
        else:
            await subscriber.wait(hint, within)

    def forget(self, token: str) -> None:
        """Forget *token*, which no longer waits."""
        subscriber = self._where.pop(token, None)
        if subscriber is not None:
            channel = subscriber.hints.forget(token)
            if channel is not None:
                subscriber.let_go(channel)

    async def close(self) -> None:
        """Close the connections."""
        for subscriber in self._subscribers.values():
            await subscriber.close()

    def forked(self) -> None:
        """A client of its own, which nobody calls yet."""
        for subscriber in self._subscribers.values():
            subscriber.forked()
        self._start()

    def _tell(self, error: StoreUnavailable) -> None:
        if not self._told and ("NOPERM" in error.problem or "unknown command" in error.problem):
            self._told = True
            logger().warning(
                "this Redis user may not subscribe to the channel that wakes waiters, so they ask %d times a second "
                "instead; allow it the channels dibs:* and the command SUBSCRIBE (%s)",
                round(1 / POLL),
                error.problem,
            )
