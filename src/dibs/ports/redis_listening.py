"""How a waiter is told that it is its turn: which channel it is called on, and what it does where it has none.

One server: one channel for each client, so that one subscription serves all its waiters and PUBLISH answers 0 when
the client is gone. In a cluster PUBLISH counts only who listens on the same node, so there is a channel for each lock,
in its slot, on the node that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dibs.errors import StoreUnavailable
from dibs.ports.redis_hints import Hint, Hints
from dibs.ports.redis_map import Map, Server
from dibs.runtime import Runtime

POLL = 0.09
"""Seconds after which a waiter without a channel asks again: within the reservation, so that it gets its turn."""


class Ear(Protocol):
    """A subscription, in either colour."""

    hints: Hints

    async def subscribe(self, channel: bytes, within: float) -> None:
        """Return when messages on *channel* are sure to come from now on; raise `StoreUnavailable` if they will not."""

    async def wait(self, hint: Hint, within: float) -> None:
        """Return when *hint* says that it is worth asking, or after *within* seconds."""

    def let_go(self, channel: bytes) -> None:
        """Nobody waits on *channel* any more."""

    async def close(self) -> None:
        """Close the connection."""

    def forked(self) -> None:
        """Forget the parent's connection."""


class Listening:
    """All that one client listens to."""

    def __init__(self, servers: Map, open_ear: Callable[[Server, Hints], Ear], runtime: Runtime) -> None:
        self._map, self._open_ear, self._runtime = servers, open_ear, runtime
        self._told = False
        self._start()

    def _start(self) -> None:
        self._client = self._runtime.token()
        self._ears: dict[str, Ear] = {}
        self._where: dict[str, Ear] = {}  # token to where it is called

    async def expect(self, key: bytes, token: str, within: float) -> bytes:
        """Listen for *token*, which will wait for the lock *key*; return the channel, empty if there is none."""
        try:
            server = self._map.known(key) or await self._map.find(key, within)
            ear = self._ears.get(server.name)
            if ear is None:
                hints = Hints(self._runtime, sharded=self._map.sharded)
                ear = self._ears.setdefault(server.name, self._open_ear(server, hints))
            channel = b"%b:wake:%b" % (key if self._map.sharded else b"dibs", self._client.encode())
            ear.hints.expect(token, channel)  # before we subscribe: no message is missed
            self._where[token] = ear
            await ear.subscribe(channel, within)
        except StoreUnavailable as error:
            self.forget(token)
            self._tell(error)
            return b""
        return channel

    async def wait(self, token: str, within: float) -> None:
        """Return when it is worth asking again with *token*, or after *within* seconds."""
        ear = self._where.get(token)
        hint = ear.hints.get(token) if ear is not None else None
        if ear is None or hint is None:
            await self._runtime.sleep(min(within, POLL))
        else:
            await ear.wait(hint, within)

    def forget(self, token: str) -> None:
        """*token* waits no more."""
        ear = self._where.pop(token, None)
        if ear is not None:
            channel = ear.hints.forget(token)
            if channel is not None:
                ear.let_go(channel)

    async def close(self) -> None:
        """Close the connections."""
        for ear in self._ears.values():
            await ear.close()

    def forked(self) -> None:
        """A client of its own, which nobody calls yet."""
        for ear in self._ears.values():
            ear.forked()
        self._start()

    def _tell(self, error: StoreUnavailable) -> None:
        if not self._told and ("NOPERM" in error.problem or "unknown command" in error.problem):
            self._told = True
            import logging  # noqa: PLC0415 - costs 4 ms at start, and is needed only here

            logging.getLogger("dibs").warning(
                "this Redis user may not subscribe to the channel that wakes waiters, so they ask %d times a second "
                "instead; allow it the channels dibs:* and the command SUBSCRIBE (%s)",
                round(1 / POLL),
                error.problem,
            )
