"""An event loop's way to one of several Redis servers: a connection for all tasks, and what the server owes on it.

Answers are matched by their order, so a task that was cancelled or has ended its round leaves nothing in disorder.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.redis.port.dial import AsyncDialer
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.protocol_async import AsyncRedisConnection
from dibs.stores.redis.port.source import RedisSource
from dibs.stores.redlock.port.nodes import (
    LONGEST_CONNECT,
    OVERDUE,
    PAUSE,
    NodeAnswer,
    NodeCall,
    Owed,
    PlainCommand,
    is_replica,
    is_unknown,
    keys_of,
)

MOST_UNDONE = 1000
"""Tokens to be given back to a node that cannot be reached; older ones end by their ttl."""


class AsyncNodeConfig(NamedTuple):
    """How nodes are spoken to."""

    greeting: Callable[[], Sequence[bytes]]
    now: Callable[[], float]
    patience: float
    """Seconds for which a node may owe an answer and still be asked."""


class AsyncChannel:
    """The way to one node: a connection, or what waits for one."""

    def __init__(self, node: int, source: RedisSource, config: AsyncNodeConfig, called: Callable[[Any], None]) -> None:
        """*called* hears all but answers: messages, and None when the connection has ended."""
        self.node, self.name = node, str(source.addresses[0])
        self._source, self._config, self._called = source, config, called
        self._dial = AsyncDialer(source.login)
        self.owed = deque[Owed]()
        self.connection: AsyncRedisConnection | None = None
        self._undone = deque[NodeCall](maxlen=MOST_UNDONE)
        self._opening: asyncio.Task[None] | None = None
        self._failed: tuple[float, StoreUnavailable] | None = None
        self._outbox: list[bytes] = []

    # --- asking --------------------------------------------------------------------------------------------

    def ask(self, owed: Owed, *, behind: bool) -> None:
        """Send, or have it sent when the connection is open; what goes wrong is an answer."""
        assert owed.to is not None
        assert owed.call is not None
        try:
            self._look(owed.since, behind=behind)
            if self.connection is None:
                self._open(owed.since)
        except StoreUnavailable as error:
            owed.to.hear(NodeAnswer(self.node, owed.call, error))
        else:
            self.owed.append(owed)
            self._write(owed.call.data)

    def _look(self, now: float, *, behind: bool) -> None:
        """A node that owes answers for long is not asked more unless *behind*."""
        late = now - self.owed[0].since if self.owed and self.connection is not None else 0.0
        if late > OVERDUE:
            self.drop(OutcomeUnknown(self.name, "no answer for a long time"))
        elif late > self._config.patience and not behind:
            raise StoreUnavailable(self.name, f"it has not answered for {late:.3g} s")

    def _write(self, data: bytes) -> None:
        if self.connection is None:
            self._outbox.append(data)
        else:
            self.connection.send(data)

    # --- hearing -------------------------------------------------------------------------------------------

    def _received(self, reply: Any) -> None:
        if not self.owed or (isinstance(reply, list) and reply[:1] == [b"message"]):
            self._called(reply)  # it is no answer: this channel is subscribed
            return
        owed = self.owed.popleft()
        if isinstance(reply, Exception):
            if owed.call is None:
                error = StoreUnavailable(self.name, refused(self.name, reply).problem)
                self._failed = (self._config.now() + PAUSE, error)
                self.drop(error)
                return
            if is_unknown(reply):
                self._say_again(owed, owed.call)
                return
            away = is_replica(reply)
            reply = refused(self.name, reply, keys_of(owed.call))
            if away:
                self.owed.appendleft(owed)
                self.drop(reply)
                return
        if owed.to is not None and owed.call is not None:
            owed.to.hear(NodeAnswer(self.node, owed.call, reply))

    def _say_again(self, owed: Owed, call: NodeCall | PlainCommand) -> None:
        if owed.is_wanted:
            self.owed.append(owed)
            self._write(call.in_full())

    # --- the connection ------------------------------------------------------------------------------------

    def drop(self, error: StoreUnavailable) -> None:
        """Give the connection up: waiting callers are told, and whatever may have happened is undone later."""
        connection, self.connection = self.connection, None
        owed_all, self.owed, self._outbox = self.owed, deque(), []
        if connection is not None:
            for owed in owed_all:
                if owed.undo is not None:
                    self._undone.append(owed.undo)
                    connection.send(owed.undo.data)  # while the old connection still takes it, say it behind
            _silence(connection)
        for owed in owed_all:
            if owed.to is not None and owed.call is not None:
                owed.to.hear(NodeAnswer(self.node, owed.call, error))

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening], timeout=1.0)
        connection, self.connection = self.connection, None
        if connection is not None:
            _silence(connection)
            await asyncio.wait([connection.ended], timeout=1.0)

    def _open(self, now: float) -> None:
        if self._failed is not None and now < self._failed[0]:
            raise StoreUnavailable(self.name, self._failed[1].problem)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_CONNECT):
                greeting = [*await self._dial.greeting(), *self._config.greeting()]
                writer = await self._dial.writer(self._source.addresses[0], LONGEST_CONNECT)
        except (StoreUnavailable, TimeoutError) as exc:
            known = isinstance(exc, StoreUnavailable)
            error = exc if known else StoreUnavailable(self.name, "the connection was not open in time")
            assert isinstance(error, StoreUnavailable)
            self._failed = (self._config.now() + PAUSE, error)
            self.drop(error)
            return
        finally:
            self._opening = None
        self._failed = None
        self._begin(writer, greeting)

    def _begin(self, writer: Any, greeting: Sequence[bytes]) -> None:
        """Greet, send what has to be undone, and then the requests that waited for the connection."""
        now, connection = self._config.now(), AsyncRedisConnection(self._config.now)
        connection.received, connection.lost = self._received, self._broke
        connection.take_over(writer)
        undone, waiting = list(self._undone), self.owed
        self._undone.clear()
        self.owed = deque(Owed(None, None, None, now) for _ in greeting)
        self.owed.extend(Owed(None, call, None, now) for call in undone)
        self.owed.extend(owed._replace(since=now) for owed in waiting)
        connection.send(b"".join([*greeting, *(call.in_full() for call in undone), *self._outbox]))
        self.connection, self._outbox = connection, []

    def _broke(self, exc: Exception | None) -> None:
        self.drop(OutcomeUnknown(self.name, f"the connection broke: {exc or 'the server closed it'}"))
        self._called(None)


def _silence(connection: AsyncRedisConnection) -> None:
    """End a connection, and ignore what still comes from it."""
    connection.received = connection.lost = _ignore
    connection.abort()


def _ignore(nothing: object) -> None:
    """Called with what a connection says after it was given up."""
