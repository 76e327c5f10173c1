"""Talks to one Redis server from an event loop: all tasks share one connection, and replies are matched by order.

What is asked for in one turn of the loop leaves in one write. A request that was cancelled or took too long keeps its
place in the order, so its reply is read and dropped and the next one is never mistaken for it; and whatever is sent
afterwards, such as the release of a token, is carried out after it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.graveyard import bury
from dibs.ports.redis_dial import AsyncDialer, check_greeting
from dibs.ports.redis_source import Address

NOT_YET = object()
"""What the parser answers while a reply is incomplete."""

BUFFER = 16_384
"""Bytes, allocated once for each connection: asyncio would otherwise map and unmap memory for each read."""

SILENCE = 0.5
"""Seconds without a byte, while an answer is overdue, after which a connection counts as dead."""

LATE = 0.02
"""Seconds: a timer that comes later than this says that the loop stood still, and replies may wait to be read."""

LONGEST_CONNECT = 5.0
"""Seconds that opening a connection may take, whoever asked for it and has gone meanwhile."""


class Line(asyncio.BufferedProtocol):
    """One connection: a transport and a parser."""

    def __init__(self, received: Callable[[Any], None], lost: Callable[[Exception | None], None]) -> None:
        self.received, self._lost = received, lost
        self._reader: Any = hiredis.Reader(notEnoughData=NOT_YET)  # Any: its types know no bytearray
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._writer: Any = None
        self.send: Callable[[bytes], None]
        self.ended = asyncio.get_running_loop().create_future()

    def take_over(self, writer: Any) -> None:
        """Speak and listen on the transport of *writer* from now on."""
        self._writer = writer  # kept: it closes its transport when it goes
        self.send = writer.transport.write
        writer.transport.set_protocol(self)

    def abort(self) -> None:
        """End it at once; `lost` is called in the next turn of the loop."""
        self._writer.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts what it reads."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """The loop has read so much."""
        reader = self._reader
        try:
            reader.feed(self._buffer, 0, nbytes)
            while (reply := reader.gets()) is not NOT_YET:
                self.received(reply)
        except hiredis.ProtocolError:
            self.abort()

    def eof_received(self) -> bool:
        """The server closed the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if not self.ended.done():
            self.ended.set_result(None)
            self._lost(exc)


class Pending:
    """A request whose replies are to come."""

    __slots__ = ("future", "missing", "replies", "until")

    def __init__(self, future: asyncio.Future[Any], until: float, count: int) -> None:
        self.future, self.until, self.missing = future, until, count
        self.replies: list[Any] = []

    def answered(self, reply: Any) -> None:
        """One more reply is here."""
        self.replies.append(reply)
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(self.replies)


class AsyncServer:
    """One server, as the tasks of one event loop see it."""

    def __init__(self, address: Address, dial: AsyncDialer, now: Callable[[], float]) -> None:
        self.address, self.name = address, str(address)
        self._dial, self._now = dial, now
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None
        self._queue = deque[Pending]()
        self._outbox: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._heard_at = 0.0

    async def call(self, data: bytes, within: float) -> Any:
        """Send one command and return its reply; an error reply is returned, not raised."""
        [reply] = await self.calls(data, 1, within)
        return reply

    async def calls(self, data: bytes, count: int, within: float) -> list[Any]:
        """Send *count* commands in one go and return their replies."""
        until = self._now() + within
        line = self._line or await self._opened(within)
        loop = asyncio.get_running_loop()
        pending = Pending(loop.create_future(), until, count)
        if self._queue:
            if not self._outbox:
                loop.call_soon(self._flush)
            self._outbox.append(data)
        else:
            line.send(data)  # nobody else is waiting, so there is nothing to go together with
        self._queue.append(pending)
        if until < self._timer_at:
            self._look_at(until)
        replies: list[Any] = await pending.future
        return replies

    async def connect(self, received: Callable[[Any], None], lost: Callable[[Exception | None], None]) -> Line:
        """A new connection, greeted, on which *received* gets what comes and *lost* is told of its end."""
        hello = await self._dial.greeting()
        greeting = Pending(asyncio.get_running_loop().create_future(), math.inf, len(hello))
        line = Line(greeting.answered, lost)
        line.take_over(await self._dial.writer(self.address, LONGEST_CONNECT))
        try:
            if hello:
                line.send(b"".join(hello))
                await asyncio.wait(
                    [greeting.future, line.ended], timeout=LONGEST_CONNECT, return_when="FIRST_COMPLETED"
                )
                if not greeting.future.done():
                    raise StoreUnavailable(self.name, "the server does not answer a greeting")
                check_greeting(self.name, greeting.replies)
        except BaseException:
            line.abort()
            raise
        line.received = received
        return line

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            line = self._line
            line.abort()
            await asyncio.wait([line.ended], timeout=1.0)
        if self._timer is not None:
            self._timer.cancel()

    def forked(self) -> None:
        """Forget the parent's connection and its loop."""
        bury(self._line)
        self._line = self._opening = self._timer = None
        self._queue, self._outbox, self._timer_at = deque(), [], math.inf

    async def _opened(self, within: float) -> Line:
        """The connection, opened by a task of its own: whoever waits for it may be cancelled."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self.connect(self._received, self._lost))
            self._opening.add_done_callback(self._is_open)
        task = self._opening
        await asyncio.wait([task], timeout=within)
        if not task.done():
            raise StoreUnavailable(self.name, f"no connection within {within:.3g} s")
        if task.cancelled():
            raise StoreUnavailable(self.name, "this client was closed")
        error = task.exception()
        if error is not None:
            raise StoreUnavailable(self.name, getattr(error, "problem", str(error))) from error
        return task.result()

    def _is_open(self, task: asyncio.Task[Line]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._line, self._heard_at = task.result(), self._now()

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if self._line is not None:
            self._line.send(data)

    def _received(self, reply: Any) -> None:
        self._heard_at = self._now()
        pending = self._queue[0]
        pending.answered(reply)
        if not pending.missing:
            self._queue.popleft()

    def _lost(self, exc: Exception | None) -> None:
        self._line = None
        queue, self._queue, self._outbox = self._queue, deque(), []
        for pending in queue:
            self._fail(pending, f"the connection broke: {exc or 'the server closed it'}")

    def _look_at(self, moment: float) -> None:
        """Look at what is overdue at *moment*: one timer for all requests."""
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0.0, moment - self._now())
        self._timer_at = moment
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        now, due = self._now(), self._timer_at
        self._timer, self._timer_at = None, math.inf
        if now > due + LATE:  # the loop stood still: read first what came meanwhile
            asyncio.get_running_loop().call_later(0.001, self._fail_overdue)
        else:
            self._fail_overdue()

    def _fail_overdue(self) -> None:
        now, next_at = self._now(), math.inf
        for pending in self._queue:
            if pending.until <= now:
                self._fail(pending, "no answer in time")
            elif not pending.future.done():
                next_at = min(next_at, pending.until)
        if self._queue and self._queue[0].until <= now and self._line is not None and now > self._heard_at + SILENCE:
            self._line.abort()  # what is under way on it can no more be overtaken by what we send next
        if next_at < self._timer_at:
            self._look_at(next_at)

    def _fail(self, pending: Pending, problem: str) -> None:
        if not pending.future.done():
            pending.future.set_exception(OutcomeUnknown(self.name, problem))
