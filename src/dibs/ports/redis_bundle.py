"""A strand to each of several Redis servers, for one thread at a time: writes to all, then reads whoever speaks."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Sequence
from typing import Any

from dibs.errors import StoreUnavailable
from dibs.ports.redis_nodes import Answer, Asker, Call, Owed, Plain
from dibs.ports.redis_strand import Poll, Strand, Way

IDLE = 0.01
"""Seconds after which a bundle is looked at before it is used: a server may have closed its connection."""


class Bundle:
    """A strand to each node."""

    def __init__(self, ways: Sequence[Way], called: Callable[[Any], None]) -> None:
        self._poll = select.poll()
        self._wait = self._poll.poll
        self._now, self._patience = ways[0].now, ways[0].patience
        self._by_fd: dict[int, Strand] = {}
        poll = Poll(self._opened, self._closed, called)
        self.strands = [Strand(node, way, poll) for node, way in enumerate(ways)]
        self._idle_since = 0.0
        self._unwanted: list[Asker] = []
        """Who was granted something that was given back on other connections, while a node still owed an answer."""

    def wake(self) -> None:
        """Read what came while nobody used it: answers that were late, and the end of connections."""
        if self._now() > self._idle_since + IDLE:
            self.listen(0.0)

    def rest(self) -> None:
        """Nobody uses it from now on."""
        self._idle_since = self._now()
        while self._unwanted:
            asker = self._unwanted.pop()
            for strand in self.strands:
                strand.take_back(asker)

    def unwanted(self, asker: Asker) -> None:
        """From another thread: what *asker* has not heard yet is not to be granted any more."""
        self._unwanted.append(asker)

    def ask_all(self, asker: Asker, call: Call | Plain, undo: Call | None, *, behind: bool) -> None:
        """Send to every node; what `Strand.ask` does, without a call for each: this is the lock path."""
        owed, data = Owed(asker, call, undo, self._now()), call.data
        soon, size = owed.since - self._patience, len(data)
        for strand in self.strands:
            if strand.sock is None or (strand.owed and strand.owed[0].since < soon):
                strand.ask(owed, behind=behind)
                continue
            strand.owed.append(owed)
            try:
                if strand.send(data) == size:
                    continue
            except OSError:
                pass
            strand.drop(StoreUnavailable(strand.name, "the connection broke"))

    def listen(self, seconds: float) -> None:
        """Wait for so long until any node speaks, and hand on what it says."""
        for fd, _ in self._wait(seconds * 1000):
            strand = self._by_fd.get(fd)
            if strand is not None:  # else it was given up in this very moment
                strand.read()

    def owes(self, asker: Asker) -> bool:
        """Whether a node has not answered it yet."""
        return any(owed.to is asker for strand in self.strands for owed in strand.owed)

    def close(self) -> None:
        """Close all, without a word: they may belong to the parent too."""
        for strand in self.strands:
            strand.close()
        self._by_fd.clear()

    def _opened(self, strand: Strand) -> None:
        self._by_fd[strand.fd] = strand
        self._poll.register(strand.fd, select.POLLIN)

    def _closed(self, strand: Strand) -> None:
        self._by_fd.pop(strand.fd, None)
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._poll.unregister(strand.fd)


class Round(Asker):
    """One round of questions, of one thread."""

    __slots__ = ("_bundle", "_give", "_now")

    def __init__(self, bundle: Bundle, now: Callable[[], float], give: Callable[[Bundle, Round, str], None]) -> None:
        super().__init__()
        self._bundle, self._now, self._give = bundle, now, give

    def send(self, node: int, call: Call | Plain, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write, and remember whose the answer will be."""
        self._bundle.strands[node].ask(Owed(self, call, undo, self._now()), behind=behind)

    def send_all(self, call: Call, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write to all."""
        self._bundle.ask_all(self, call, undo, behind=behind)

    async def next(self, until: float) -> Answer | None:
        """Read whoever answers first."""
        return self.read(until)

    def read(self, until: float) -> Answer | None:
        """The same, which is no coroutine."""
        answers = self.answers
        while not answers:
            left = until - self._now()
            if left <= 0:
                return None
            self._bundle.listen(left)
        return answers.popleft()

    def end(self, *, keep: str = "") -> None:
        """Leave the bundle to the next."""
        if not self.ended:
            self.ended = True
            self._give(self._bundle, self, keep)
