"""Requests and replies on one connection of an event loop: in which order, until when, and what is left at its end.

The order belongs to the connection and ends with it: what was asked on one connection is never answered by another.
A request that was cancelled or took too long keeps its place, so its reply is read and dropped; and whatever is sent
afterwards, such as the release of a token, is carried out after it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.redis.port.protocol_async import AsyncRedisConnection

SILENCE = 0.5
"""Seconds without a byte, while an answer is overdue, after which a connection counts as dead."""

LATE = 0.02
"""Seconds: a timer that comes later than this says that the loop stood still, and replies may wait to be read."""


class Pipeline:
    """One connection in use."""

    def __init__(self, name: str, connection: AsyncRedisConnection, now: Callable[[], float]) -> None:
        self.connection = connection
        self._name, self._now = name, now
        self._loop = asyncio.get_running_loop()
        self._queue = deque[tuple[asyncio.Future[Any], float]]()  # whose reply is to come, in order, and until when
        self._outbox: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        connection.received, connection.lost = self._received, self._lost

    def ask(self, data: bytes, until: float) -> asyncio.Future[Any]:
        """Send *data*, now or with what others send in this turn of the loop; its reply is in the future."""
        if self.connection.is_over:
            raise StoreUnavailable(self._name, "the connection broke before anything was sent")
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._queue:
            self.connection.send(data)  # no other request waits that could go with it
        else:
            if not self._outbox:
                self._loop.call_soon(self._flush)
            self._outbox.append(data)
        self._queue.append((future, until))
        if until < self._timer_at:
            self._look_at(until)
        return future

    async def ask_all(self, data: bytes, count: int, until: float) -> list[Any]:
        """Send *data*, which is *count* commands, and return their replies."""
        futures = [self.ask(data, until), *(self.ask(b"", until) for _ in range(count - 1))]
        try:
            return [await future for future in futures]
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # looked at, so that the loop does not report it

    def _received(self, reply: Any) -> None:
        future = self._queue.popleft()[0]
        if not future.done():
            future.set_result(reply)

    def _lost(self, exc: Exception | None) -> None:
        """Fail all open requests: their outcome is unknown."""
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in self._queue:
            self._fail(future, f"the connection broke: {exc or 'the server closed it'}")
        self._queue.clear()
        self._outbox.clear()

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if not self.connection.is_over:
            self.connection.send(data)

    def _look_at(self, moment: float) -> None:
        """Look at what is overdue at *moment*: one timer for all requests."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(0.0, moment - self._now()), self._look)

    def _look(self) -> None:
        if self._now() > self._timer_at + LATE:  # the loop stood still: read first what has arrived
            self._timer = self._loop.call_later(0.001, self._fail_overdue)
        else:
            self._fail_overdue()

    def _fail_overdue(self) -> None:
        now, next_at = self._now(), math.inf
        for future, until in self._queue:
            if until <= now:
                self._fail(future, "no answer in time")
            elif not future.done():
                next_at = min(next_at, until)
        self._timer, self._timer_at = None, math.inf
        if self._queue and self._queue[0][1] <= now and now > self.connection.heard_at + SILENCE:
            self.connection.abort("it was silent")  # so no request on it is carried out after the next one
        elif next_at < math.inf:
            self._look_at(next_at)

    def _fail(self, future: asyncio.Future[Any], problem: str) -> None:
        if not future.done():
            future.set_exception(OutcomeUnknown(self._name, problem))
