"""Talks to one Redis server from an event loop: all tasks share one connection, and replies are matched by order.

What is asked for in one turn of the loop leaves in one write. A request that was cancelled or took too long keeps its
place in the order, so its reply is read and dropped and the next one is never mistaken for it; and whatever is sent
afterwards, such as the release of a token, is carried out after it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
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

    def __init__(
        self,
        received: Callable[[Any], None],
        lost: Callable[[Exception | None], None],
        now: Callable[[], float],
    ) -> None:
        self.received, self._lost, self._now = received, lost, now
        reader: Any = hiredis.Reader(notEnoughData=NOT_YET)  # Any: its types know no bytearray
        self._feed, self._next = reader.feed, reader.gets
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._writer: Any = None
        self.send: Callable[[bytes], None]
        self.heard_at = now()
        self.ended = asyncio.get_running_loop().create_future()

    def take_over(self, writer: Any) -> None:
        """Speak and listen on the transport of *writer* from now on."""
        self._writer = writer  # kept: it closes its transport when it goes
        self.send = writer.transport.write
        writer.transport.set_protocol(self)

    def abort(self, why: str = "this client closed it") -> None:
        """End it at once: `lost` is called, and nothing comes any more; `ended` is set when the socket is closed."""
        self._writer.transport.abort()
        self._end(ConnectionAbortedError(why))

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts what it reads."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """The loop has read so much."""
        self.heard_at = self._now()
        try:
            self._feed(self._buffer, 0, nbytes)
            for reply in iter(self._next, NOT_YET):
                self.received(reply)
        except hiredis.ProtocolError as exc:
            self.abort(f"it sent what is no reply ({exc})")

    def eof_received(self) -> bool:
        """The server closed the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if not self.ended.done():
            self.ended.set_result(None)
        self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        lost, self._lost, self.received = self._lost, _ignore, _ignore
        lost(exc)


def _ignore(nothing: object) -> None:
    """For a connection that is over."""


class AsyncServer:
    """One server, as the tasks of one event loop see it."""

    def __init__(self, address: Address, dial: AsyncDialer, now: Callable[[], float]) -> None:
        self.address, self.name = address, str(address)
        self._dial, self._now = dial, now
        self._fresh()

    def _fresh(self) -> None:
        self._loop: asyncio.AbstractEventLoop
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None
        self._queue = deque[tuple[asyncio.Future[Any], float]]()  # whose reply is to come, in order, and until when
        self._outbox: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def call(self, data: bytes, within: float) -> Awaitable[Any]:
        """Send one command and return its reply; an error reply is returned, not raised."""
        line = self._line
        return self._call_later(data, within) if line is None else self._ask(line, data, self._now() + within)

    async def calls(self, data: bytes, count: int, within: float) -> list[Any]:
        """Send *count* commands in one go and return their replies."""
        until = self._now() + within
        line = self._line or await self._opened(within)
        futures = [self._ask(line, data, until), *(self._ask(line, b"", until) for _ in range(count - 1))]
        try:
            return [await future for future in futures]
        finally:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # looked at, so that the loop does not report it

    async def connect(self, received: Callable[[Any], None], lost: Callable[[Exception | None], None]) -> Line:
        """A new connection, greeted, on which *received* gets what comes and *lost* is told of its end."""
        hello, replies = await self._dial.greeting(), list[Any]()
        answered = asyncio.get_running_loop().create_future()

        def greeted(reply: Any) -> None:
            replies.append(reply)
            if len(replies) == len(hello) and not answered.done():
                answered.set_result(None)

        line = Line(greeted, lost, self._now)
        line.take_over(await self._dial.writer(self.address, LONGEST_CONNECT))
        try:
            if hello:
                line.send(b"".join(hello))
                either = [answered, line.ended]
                await asyncio.wait(either, timeout=LONGEST_CONNECT, return_when=asyncio.FIRST_COMPLETED)
                if not answered.done():
                    raise StoreUnavailable(self.name, "the server does not answer a greeting")
                check_greeting(self.name, replies)
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
        """Forget the parent's connection and its loop; they are never collected, since that would close them."""
        bury((self._line, self._opening, self._timer, self._queue))
        self._fresh()

    def _ask(self, line: Line, data: bytes, until: float) -> asyncio.Future[Any]:
        """Send *data*, now or with what others send in this turn of the loop; what comes back is in its place."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._queue:
            line.send(data)  # nobody else waits, so there is nothing to go together with
        else:
            if not self._outbox:
                self._loop.call_soon(self._flush)
            self._outbox.append(data)
        self._queue.append((future, until))
        if until < self._timer_at:
            self._look_at(until)
        return future

    async def _call_later(self, data: bytes, within: float) -> Any:
        until = self._now() + within
        line = await self._opened(within)
        return await self._ask(line, data, until)

    async def _opened(self, within: float) -> Line:
        """The connection, opened by a task of its own: whoever waits for it may be cancelled."""
        if self._opening is None:
            self._loop = asyncio.get_running_loop()
            self._opening = self._loop.create_task(self.connect(self._received, self._lost))
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
            self._line = task.result()

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if self._line is not None:
            self._line.send(data)

    def _received(self, reply: Any) -> None:
        future = self._queue.popleft()[0]
        if not future.done():
            future.set_result(reply)

    def _lost(self, exc: Exception | None) -> None:
        self._line = None
        queue, self._queue, self._outbox = self._queue, deque(), []
        for future, _ in queue:
            self._fail(future, f"the connection broke: {exc or 'the server closed it'}")

    def _look_at(self, moment: float) -> None:
        """Look at what is overdue at *moment*: one timer for all requests."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = moment
        self._timer = self._loop.call_later(max(0.0, moment - self._now()), self._look)

    def _look(self) -> None:
        late = self._now() > self._timer_at + LATE
        self._timer, self._timer_at = None, math.inf
        if late:  # the loop stood still: read first what came meanwhile
            self._loop.call_later(0.001, self._fail_overdue)
        else:
            self._fail_overdue()

    def _fail_overdue(self) -> None:
        now, next_at = self._now(), math.inf
        for future, until in self._queue:
            if until <= now:
                self._fail(future, "no answer in time")
            elif not future.done():
                next_at = min(next_at, until)
        if self._line is not None and self._queue and self._queue[0][1] <= now > self._line.heard_at + SILENCE:
            self._line.abort("it was silent")  # so nothing that is under way on it comes after what we send next
        if next_at < self._timer_at:
            self._look_at(next_at)

    def _fail(self, future: asyncio.Future[Any], problem: str) -> None:
        if not future.done():
            future.set_exception(OutcomeUnknown(self.name, problem))
