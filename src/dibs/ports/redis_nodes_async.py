"""Asks several Redis servers from an event loop: one connection to each, shared by all tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dibs.ports.graveyard import bury
from dibs.ports.redis_line import Line
from dibs.ports.redis_nodes import Answer, Asker, Call, Owed, Plain
from dibs.ports.redis_source import Source
from dibs.ports.redis_strand_async import Manners, Strand
from dibs.runtime import Event, Runtime


class AsyncRound(Asker):
    """One round, of one task."""

    __slots__ = ("_event", "_now", "_strands")

    def __init__(self, strands: Sequence[Strand], now: Callable[[], float], event: Event) -> None:
        super().__init__()
        self._strands, self._now, self._event = strands, now, event

    def send(self, node: int, call: Call | Plain, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write, and remember whose the answer will be."""
        self._strands[node].ask(Owed(self, call, undo, self._now()), behind=behind)

    def send_all(self, call: Call, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write to all."""
        owed = Owed(self, call, undo, self._now())
        for strand in self._strands:
            strand.ask(owed, behind=behind)

    def hear(self, answer: Answer) -> None:
        """An answer is here."""
        super().hear(answer)
        self._event.set()

    async def next(self, until: float) -> Answer | None:
        """Wait for the first answer."""
        while not self.answers:
            left = until - self._now()
            if left <= 0:
                return None
            self._event.clear()
            await self._event.wait(left)
        return self.answers.popleft()

    def end(self, *, keep: str = "") -> None:
        """No more is heard; there is only one connection to each node, so the next round has the same."""
        self.ended = True


class AsyncNodes:
    """All nodes, as the tasks of one event loop see them."""

    def __init__(
        self, sources: Sequence[Source], greeting: Callable[[], Sequence[bytes]], runtime: Runtime, patience: float
    ) -> None:
        self._sources, self._runtime, self._now = sources, runtime, runtime.now
        self._manners = Manners(greeting, runtime.now, patience)
        self.names = [str(source.addresses[0]) for source in sources]
        self._fresh()

    def _fresh(self) -> None:
        self._channel = b"dibs:wake:%b" % self._runtime.token().encode()
        self._strands = [Strand(n, source, self._manners, _ignore) for n, source in enumerate(self._sources)]
        self._ears = [Strand(n, source, self._manners, self._called) for n, source in enumerate(self._sources)]
        self._on: list[Line | None] = [None] * len(self._ears)
        """The connections that listen."""
        self._waiting: dict[str, tuple[Event, list[str]]] = {}

    def round(self, token: str = "") -> AsyncRound:
        """Begin a round."""
        return AsyncRound(self._strands, self._now, self._runtime.event())

    # --- waiting -------------------------------------------------------------------------------------------

    async def expect(self, token: str, within: float) -> bytes:
        """Listen on one channel for all tasks."""
        if token not in self._waiting:
            self._waiting[token] = (self._runtime.event(), [])
        missing = [ear for ear in self._ears if ear.line is None or self._on[ear.node] is not ear.line]
        if missing:
            await self._subscribe(missing, self._now() + within)
        return self._channel if any(self._on) else b""

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

    async def _subscribe(self, missing: Sequence[Strand], until: float) -> None:
        asking = AsyncRound(self._ears, self._now, self._runtime.event())
        call = Plain("SUBSCRIBE", self._channel)
        for ear in missing:
            asking.send(ear.node, call)
        for _ in missing:
            if 2 * sum(on is not None for on in self._on) > len(self._on):
                break
            answer = await asking.next(until)
            if answer is None:
                break
            self._on[answer.node] = self._ears[answer.node].line if isinstance(answer.reply, list) else None

    def _called(self, message: Any) -> None:
        if isinstance(message, list) and message[0] == b"message":
            word, _, token = message[2].decode().partition(" ")
            known = self._waiting.get(token)
            if known is not None:
                known[1].append(word)
                known[0].set()

    # --- the end -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections."""
        for strand in (*self._strands, *self._ears):
            await strand.close()

    def forked(self) -> None:
        """Forget the parent's connections, and its loop."""
        for strand in (*self._strands, *self._ears):
            bury(strand.line)
        self._fresh()


def _ignore(message: object) -> None:
    """Who does not listen hears nothing that it did not ask for."""
