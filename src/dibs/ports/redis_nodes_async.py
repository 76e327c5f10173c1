"""Asks several Redis servers from an event loop: one connection to each, shared by all tasks.

Answers are matched by their order, so a task that was cancelled or has ended its round leaves nothing in disorder.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.graveyard import bury
from dibs.ports.redis_dial import AsyncDialer
from dibs.ports.redis_errors import refused
from dibs.ports.redis_nodes import LONGEST_CONNECT, OVERDUE, PAUSE, Answer, Call, Plain
from dibs.ports.redis_source import Source
from dibs.runtime import Event, Runtime

NOT_YET = object()
"""What the parser answers while a reply is incomplete."""

BUFFER = 16_384
"""Bytes, allocated once for each connection: asyncio would otherwise map and unmap memory for each read."""

MOST_UNDONE = 1000
"""Tokens to be given back to a node that cannot be reached; older ones end by their ttl."""


class Owed(NamedTuple):
    """An answer that a node owes."""

    round: AsyncRound | None
    call: Call | Plain | None
    """None: it belongs to the greeting."""
    undo: Call | None
    since: float


class Wire(asyncio.BufferedProtocol):
    """One connection: a transport and a parser."""

    def __init__(self, received: Callable[[Any], None], lost: Callable[[Exception], None]) -> None:
        self._received, self._lost = received, lost
        reader: Any = hiredis.Reader(notEnoughData=NOT_YET)  # Any: its types know no bytearray
        self._feed, self._next = reader.feed, reader.gets
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._writer: Any = None

    def take_over(self, writer: Any) -> None:
        """Speak and listen on the transport of *writer* from now on."""
        self._writer = writer  # kept: it closes its transport when it goes
        self.send: Callable[[bytes], None] = writer.transport.write
        writer.transport.set_protocol(self)

    def close(self) -> None:
        """End it, and tell nobody."""
        self._received, self._lost = _ignore, _ignore
        self._writer.transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the loop puts what it reads."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """The loop has read so much."""
        try:
            self._feed(self._buffer, 0, nbytes)
            for reply in iter(self._next, NOT_YET):
                self._received(reply)
        except hiredis.ProtocolError as exc:
            self._lost(exc)

    def eof_received(self) -> bool:
        """The server closed the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._lost(exc or ConnectionResetError("the server closed the connection"))


def _ignore(nothing: object) -> None:
    """For a connection that is over."""


class Strand:
    """The way to one node: a connection, or what waits for one."""

    def __init__(self, crew: AsyncNodes, node: int, source: Source, heard: Callable[[Any], None]) -> None:
        self.name = str(source.addresses[0])
        self._crew, self._node, self._source, self._heard = crew, node, source, heard
        self._dial = AsyncDialer(source.login)
        self.owed = deque[Owed]()
        self.undone = deque[Call](maxlen=MOST_UNDONE)
        self.wire: Wire | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failed: tuple[float, StoreUnavailable] | None = None
        self._outbox: list[bytes] = []

    def post(self, owed: Owed, *, behind: bool) -> None:
        """Send, or have it sent when the connection is open; raise `StoreUnavailable` if it will not be."""
        if self.owed and self.wire is not None and owed.since - self.owed[0].since > self._crew.patience:
            late = owed.since - self.owed[0].since
            if late > OVERDUE:
                self.drop(OutcomeUnknown(self.name, "no answer for a long time"))
            elif not behind:
                raise StoreUnavailable(self.name, f"it has not answered for {late:.3g} s")
        if self.wire is None:
            self._open(owed.since)
        assert owed.call is not None
        self.owed.append(owed)
        self._write(owed.call.data)

    def drop(self, error: StoreUnavailable) -> None:
        """Give the connection up: who waits for an answer is told, and what may have happened is undone later."""
        wire, self.wire = self.wire, None
        owed_all, self.owed, self._outbox = self.owed, deque(), []
        if wire is not None:
            for owed in owed_all:
                if owed.undo is not None:
                    self.undone.append(owed.undo)
                    wire.send(owed.undo.data)  # while the old connection still takes it, say it behind
            wire.close()
        for owed in owed_all:
            if owed.round is not None and owed.call is not None:
                owed.round.hear(Answer(self._node, owed.call, error))

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening], timeout=1.0)
        if self.wire is not None:
            self.wire.close()
            self.wire = None
            await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop

    def _write(self, data: bytes) -> None:
        if self.wire is None:
            self._outbox.append(data)
        else:
            self.wire.send(data)

    def _open(self, now: float) -> None:
        if self._failed is not None and now < self._failed[0]:
            raise StoreUnavailable(self.name, self._failed[1].problem)
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_CONNECT):
                greeting = [*await self._dial.greeting(), *self._crew.greeting()]
                writer = await self._dial.writer(self._source.addresses[0], LONGEST_CONNECT)
        except (StoreUnavailable, TimeoutError) as exc:
            known = isinstance(exc, StoreUnavailable)
            error = exc if known else StoreUnavailable(self.name, "the connection was not open in time")
            assert isinstance(error, StoreUnavailable)
            self._failed = (self._crew.now() + PAUSE, error)
            self.drop(error)
            return
        finally:
            self._opening = None
        self._failed, now = None, self._crew.now()
        wire = Wire(self._received, self._broke)
        wire.take_over(writer)
        undone, waiting = list(self.undone), self.owed
        self.undone.clear()
        self.owed = deque(Owed(None, None, None, now) for _ in greeting)
        self.owed.extend(Owed(None, call, None, now) for call in undone)
        self.owed.extend(owed._replace(since=now) for owed in waiting)
        wire.send(b"".join([*greeting, *(call.in_full() for call in undone), *self._outbox]))
        self.wire, self._outbox = wire, []

    def _received(self, reply: Any) -> None:
        if not self.owed or (isinstance(reply, list) and reply[:1] == [b"message"]):
            self._heard(reply)  # nobody asked for it: this strand listens
            return
        owed = self.owed.popleft()
        if isinstance(reply, Exception):
            if owed.call is None:
                self.drop(StoreUnavailable(self.name, refused(self.name, reply).problem))
                return
            if str(reply).startswith("NOSCRIPT"):
                self._say_again(owed, owed.call)
                return
            reply = refused(self.name, reply)
        if owed.round is not None and owed.call is not None:
            owed.round.hear(Answer(self._node, owed.call, reply))

    def _say_again(self, owed: Owed, call: Call | Plain) -> None:
        """The server has lost the script. A vote that nobody waits for any more is not asked for again."""
        if owed.undo is None or (owed.round is not None and not owed.round.ended):
            self.owed.append(owed)
            self._write(call.in_full())

    def _broke(self, exc: Exception) -> None:
        self.drop(OutcomeUnknown(self.name, f"the connection broke: {exc}"))


class AsyncRound:
    """One round, of one task."""

    __slots__ = ("_answers", "_crew", "_event", "ended")

    def __init__(self, crew: AsyncNodes, event: Event) -> None:
        self._crew, self._event = crew, event
        self._answers = deque[Answer]()
        self.ended = False

    def send(self, node: int, call: Call | Plain, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write, and remember whose the answer will be."""
        try:
            self._crew.strands[node].post(Owed(self, call, undo, self._crew.now()), behind=behind)
        except StoreUnavailable as error:
            self._answers.append(Answer(node, call, error))

    def send_all(self, call: Call, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write to all."""
        for node in range(len(self._crew.strands)):
            self.send(node, call, undo=undo, behind=behind)

    def hear(self, answer: Answer) -> None:
        """An answer is here."""
        if not self.ended:
            self._answers.append(answer)
            self._event.set()

    async def next(self, until: float) -> Answer | None:
        """Wait for the first answer."""
        while not self._answers:
            left = until - self._crew.now()
            if left <= 0:
                return None
            self._event.clear()
            await self._event.wait(left)
        return self._answers.popleft()

    def end(self, *, keep: str = "") -> None:
        """No more is heard; there is only one connection to each node, so the next round has the same."""
        self.ended = True


class AsyncNodes:
    """All nodes, as the tasks of one event loop see them."""

    def __init__(
        self, sources: Sequence[Source], greeting: Callable[[], Sequence[bytes]], runtime: Runtime, patience: float
    ) -> None:
        self._sources, self._runtime = sources, runtime
        self.greeting, self.now, self.patience = greeting, runtime.now, patience
        self.names = [str(source.addresses[0]) for source in sources]
        self._fresh()

    def _fresh(self) -> None:
        self.channel = b"dibs:wake:%b" % self._runtime.token().encode()
        self.strands = [Strand(self, n, source, _ignore) for n, source in enumerate(self._sources)]
        self._ears = [Strand(self, n, source, self._called) for n, source in enumerate(self._sources)]
        self._on: list[Wire | None] = [None] * len(self._ears)
        self._waiting: dict[str, tuple[Event, list[str]]] = {}

    def round(self, token: str = "") -> AsyncRound:
        """Begin a round."""
        return AsyncRound(self, self._runtime.event())

    async def expect(self, token: str, within: float) -> bytes:
        """Listen on one channel for all tasks."""
        if token not in self._waiting:
            self._waiting[token] = (self._runtime.event(), [])
        missing = [n for n, ear in enumerate(self._ears) if ear.wire is None or self._on[n] is not ear.wire]
        if missing:
            await self._subscribe(missing, self.now() + within)
        return self.channel if any(self._on) else b""

    async def wait(self, token: str, within: float) -> str:
        """Wait for a call."""
        known = self._waiting.get(token)
        if known is None:
            return ""
        event, words = known
        if not words:
            event.clear()
            await event.wait(within)
        word = words[0] if words else ""
        words.clear()
        return word

    def forget(self, token: str) -> None:
        """*token* waits no more."""
        self._waiting.pop(token, None)

    async def close(self) -> None:
        """Close the connections."""
        for strand in (*self.strands, *self._ears):
            await strand.close()

    def forked(self) -> None:
        """Forget the parent's connections, and its loop."""
        for strand in (*self.strands, *self._ears):
            bury(strand.wire)
        self._fresh()

    async def _subscribe(self, missing: Sequence[int], until: float) -> None:
        asking = AsyncRound(self, self._runtime.event())
        call = Plain("SUBSCRIBE", self.channel)
        for node in missing:
            try:
                self._ears[node].post(Owed(asking, call, None, self.now()), behind=False)
            except StoreUnavailable as error:
                asking.hear(Answer(node, call, error))
        for _ in missing:
            if 2 * sum(on is not None for on in self._on) > len(self._on):
                break
            answer = await asking.next(until)
            if answer is None:
                break
            self._on[answer.node] = self._ears[answer.node].wire if isinstance(answer.reply, list) else None

    def _called(self, message: Any) -> None:
        if isinstance(message, list) and message[0] == b"message":
            word, _, token = message[2].decode().partition(" ")
            known = self._waiting.get(token)
            if known is not None:
                known[1].append(word)
                known[0].set()
