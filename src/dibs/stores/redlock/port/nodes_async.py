"""Asks several Redis servers from an event loop: one connection to each, shared by all tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dibs.ports.fork import never_close
from dibs.runtime import Event, Runtime
from dibs.stores.redis.port.protocol_async import AsyncRedisConnection
from dibs.stores.redis.port.source import RedisSource
from dibs.stores.redlock.port.channel_async import AsyncChannel, AsyncNodeConfig
from dibs.stores.redlock.port.nodes import Asker, NodeAnswer, NodeCall, Owed, PlainCommand


class AsyncRound(Asker):
    """One round, of one task."""

    __slots__ = ("_channels", "_event", "_now")

    def __init__(self, channels: Sequence[AsyncChannel], now: Callable[[], float], event: Event) -> None:
        super().__init__()
        self._channels, self._now, self._event = channels, now, event

    def send(
        self, node: int, call: NodeCall | PlainCommand, *, undo: NodeCall | None = None, behind: bool = False
    ) -> None:
        """Write, and remember whose the answer will be."""
        self._channels[node].ask(Owed(self, call, undo, self._now()), behind=behind)

    def send_all(self, call: NodeCall, *, undo: NodeCall | None = None, behind: bool = False) -> None:
        """Write to all."""
        owed = Owed(self, call, undo, self._now())
        for channel in self._channels:
            channel.ask(owed, behind=behind)

    def hear(self, answer: NodeAnswer) -> None:
        """Keep *answer*, and wake the task that waits for it."""
        super().hear(answer)
        self._event.set()

    async def next(self, until: float) -> NodeAnswer | None:
        """Wait for the first answer. A loop that stood still reads what has arrived before it gives up."""
        left = 1.0
        while not self.answers and left > 0:
            left = until - self._now()
            self._event.clear()
            await self._event.wait(max(0.0, left))
        return self.answers.popleft() if self.answers else None

    def end(self, *, keep: str = "") -> None:
        """Ignore later answers; there is one connection to each node, so the next round has the same ones."""
        self.ended = True


class AsyncNodes:
    """The connections to all nodes, for the tasks of one event loop."""

    def __init__(
        self, sources: Sequence[RedisSource], greeting: Callable[[], Sequence[bytes]], runtime: Runtime, patience: float
    ) -> None:
        self._sources, self._runtime, self._now = sources, runtime, runtime.now
        self._config = AsyncNodeConfig(greeting, runtime.now, patience)
        self.names = [str(source.addresses[0]) for source in sources]
        self._fresh()

    def _fresh(self) -> None:
        self._wake_channel = b"dibs:wake:%b" % self._runtime.token().encode()
        self._channels = [AsyncChannel(n, source, self._config, _ignore) for n, source in enumerate(self._sources)]
        self._subscribers = [
            AsyncChannel(n, source, self._config, self._called) for n, source in enumerate(self._sources)
        ]
        self._subscribed: list[AsyncRedisConnection | None] = [None] * len(self._subscribers)
        """The connections that listen."""
        self._waiting: dict[str, tuple[Event, list[str]]] = {}
        self._counted_on: dict[str, int] = {}
        """How many nodes could call a token when it last asked."""

    def round(self, token: str = "") -> AsyncRound:
        """Begin a round."""
        return AsyncRound(self._channels, self._now, self._runtime.event())

    # --- waiting -------------------------------------------------------------------------------------------

    async def expect(self, token: str, within: float) -> bytes:
        """Listen on one channel for all tasks."""
        if token not in self._waiting:
            self._waiting[token] = (self._runtime.event(), [])
        missing = [
            subscriber
            for subscriber in self._subscribers
            if subscriber.connection is None or self._subscribed[subscriber.node] is not subscriber.connection
        ]
        if missing:
            await self._subscribe(missing, self._now() + within)
        self._counted_on[token] = self._heard_by
        return self._wake_channel if self._heard_by else b""

    async def wait(self, token: str, within: float) -> str:
        """Wait for a call, or for the end of a connection: a call may be lost then."""
        known = self._waiting.get(token)
        if known is None or self._heard_by < self._counted_on.get(token, 0):
            return ""
        event, words = known
        if not words:
            event.clear()
            await event.wait(within)
        word = words[0] if words else ""
        words.clear()
        return word

    def forget(self, token: str) -> None:
        """Forget *token*, which has stopped waiting."""
        self._waiting.pop(token, None)
        self._counted_on.pop(token, None)

    @property
    def _heard_by(self) -> int:
        """How many nodes can call us."""
        return sum(
            on is not None and on is subscriber.connection
            for on, subscriber in zip(self._subscribed, self._subscribers, strict=True)
        )

    async def _subscribe(self, missing: Sequence[AsyncChannel], until: float) -> None:
        asking = AsyncRound(self._subscribers, self._now, self._runtime.event())
        call = PlainCommand("SUBSCRIBE", self._wake_channel)
        for subscriber in missing:
            asking.send(subscriber.node, call)
        for _ in missing:
            if 2 * self._heard_by > len(self._subscribed):
                break
            answer = await asking.next(until)
            if answer is None:
                break
            self._subscribed[answer.node] = (
                self._subscribers[answer.node].connection if isinstance(answer.reply, list) else None
            )

    def _called(self, message: Any) -> None:
        if message is None:
            for event, _ in self._waiting.values():
                event.set()
        elif isinstance(message, list) and message[0] == b"message":
            word, _, token = message[2].decode().partition(" ")
            known = self._waiting.get(token)
            if known is not None:
                known[1].append(word)
                known[0].set()

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections."""
        for channel in (*self._channels, *self._subscribers):
            await channel.close()

    def forked(self) -> None:
        """Forget the parent's connections, and its loop."""
        for channel in (*self._channels, *self._subscribers):
            never_close(channel.connection)
        self._fresh()


def _ignore(message: object) -> None:
    """For channels without a subscription, which get no messages."""
