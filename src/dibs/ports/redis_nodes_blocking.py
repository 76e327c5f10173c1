"""Asks several Redis servers from one thread: writes to all, then reads whoever answers.

A thread takes a strand to each node, one bundle of them, for as long as its round takes. Bundles wait on a stack, so
one thread uses the same bundle again and again, and its answers come in the order of its questions.
"""

from __future__ import annotations

import contextlib
import math
import select
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.redis_dial import BlockingDialer
from dibs.ports.redis_errors import refused
from dibs.ports.redis_nodes import LONGEST_CONNECT, OVERDUE, PAUSE, Answer, Call, Plain
from dibs.ports.redis_source import Source

CHUNK = 16_384
"""Bytes that are read at once."""

NOT_YET = object()
"""What the parser answers while a reply is incomplete."""

IDLE = 0.01
"""Seconds after which a bundle is looked at before it is used: a server may have closed its connection."""

USUAL = {bytes, int}
"""Kinds of replies that are nothing but an answer: no error, and no message to one who listens."""

MOST_UNDONE = 100
"""Tokens to be given back to a node that cannot be reached; older ones end by their ttl."""


class Owed(NamedTuple):
    """An answer that a node owes."""

    round: BlockingRound | None
    call: Call | Plain | None
    """None: it belongs to the greeting."""
    undo: Call | None
    since: float


class Strand:
    """One connection to one node."""

    __slots__ = ("feed", "is_secure", "next", "owed", "receive", "send", "sock")

    def __init__(self, sock: Any) -> None:
        reader = hiredis.Reader(notEnoughData=NOT_YET)
        self.sock, self.send, self.receive = sock, sock.send, sock.recv
        self.feed, self.next = reader.feed, reader.gets
        self.owed = deque[Owed]()
        self.is_secure = isinstance(sock, ssl.SSLSocket)
        sock.settimeout(LONGEST_CONNECT if self.is_secure else 0.0)


class Bundle:
    """A strand to each node, for one thread at a time."""

    def __init__(self, crew: BlockingNodes) -> None:
        self._crew = crew
        self._poll = select.poll()
        self.poll = self._poll.poll
        count = len(crew.names)
        self.strands: list[Strand | None] = [None] * count
        self.by_fd: dict[int, int] = {}
        self.undone: list[deque[Call]] = [deque(maxlen=MOST_UNDONE) for _ in range(count)]
        self._failed: list[tuple[float, StoreUnavailable] | None] = [None] * count
        self.used_at = 0.0

    def wake(self, now: float) -> None:
        """Read what came while nobody used it: answers that were late, and the end of connections."""
        if now > self.used_at + IDLE:
            for fd, _ in self.poll(0):
                self.read(self.by_fd.get(fd, -1))

    def post(self, node: int, owed: Owed, *, behind: bool) -> None:
        """Send; raise `StoreUnavailable` if it was not sent."""
        strand = self.strands[node]
        if strand is not None and strand.owed:
            strand = self._look(node, strand, owed.since, behind=behind)
        if strand is None:
            strand = self._connect(node, owed.since)
        assert owed.call is not None
        self._write(node, strand, owed.call.data)
        strand.owed.append(owed)

    def post_all(self, owed: Owed, data: bytes, *, behind: bool) -> None:
        """Send to every node; what `post` does, without a call for each: this is the lock path."""
        soon = owed.since - self._crew.patience
        for node, strand in enumerate(self.strands):
            if strand is None or (strand.owed and strand.owed[0].since < soon):
                self._post_late(node, owed, behind=behind)
                continue
            try:
                is_sent = strand.send(data) == len(data)
            except OSError:
                is_sent = False
            strand.owed.append(owed)
            if not is_sent:
                self.drop(node, StoreUnavailable(self._crew.names[node], "the connection broke"))

    def _post_late(self, node: int, owed: Owed, *, behind: bool) -> None:
        try:
            self.post(node, owed, behind=behind)
        except StoreUnavailable as error:
            assert owed.round is not None
            assert owed.call is not None
            owed.round.answers.append(Answer(node, owed.call, error))

    def _look(self, node: int, strand: Strand, now: float, *, behind: bool) -> Strand | None:
        """The strand of a node that owes answers, if it can be used: what has come is read first."""
        late = now - strand.owed[0].since
        if late < self._crew.patience:
            return strand
        self.read(node)
        if self.strands[node] is not strand or not strand.owed:
            return self.strands[node]
        if late > OVERDUE:
            self.drop(node, OutcomeUnknown(self._crew.names[node], "no answer for a long time"))
            return None
        if behind:
            return strand
        raise StoreUnavailable(self._crew.names[node], f"it has not answered for {late:.3g} s")

    def read(self, node: int) -> None:
        """Read what has come from *node*, and hand it on to whom it is for."""
        strand = self.strands[node] if node >= 0 else None  # -1: it was given up in this very moment
        if strand is None:
            return
        try:
            piece = strand.receive(CHUNK)
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            strand.feed(piece)
            owed_all, take = strand.owed, strand.next
            while (reply := take()) is not NOT_YET:
                if owed_all and (owed := owed_all[0]).round is not None and reply.__class__ in USUAL:
                    del owed_all[0]
                    owed.round.answers.append(Answer(node, owed.call, reply))  # type: ignore[arg-type]
                else:
                    self._hand_on(node, strand, reply)
            if strand.is_secure and strand.sock.pending():
                self.read(node)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except (OSError, hiredis.ProtocolError) as exc:
            self.drop(node, OutcomeUnknown(self._crew.names[node], f"the connection broke: {exc}"))
        except StoreUnavailable as exc:
            self.drop(node, exc)

    def _hand_on(self, node: int, strand: Strand, reply: Any) -> None:
        if not strand.owed or (isinstance(reply, list) and reply[:1] == [b"message"]):
            self._crew.heard(self, reply)  # nobody asked for it: this bundle listens
            return
        owed = strand.owed.popleft()
        if owed.call is None:
            if isinstance(reply, Exception):
                raise StoreUnavailable(self._crew.names[node], refused(self._crew.names[node], reply).problem)
        elif isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT"):
            self._say_again(node, strand, owed)
        elif owed.round is not None:
            owed.round.answers.append(Answer(node, owed.call, reply))

    def _say_again(self, node: int, strand: Strand, owed: Owed) -> None:
        """The server has lost the script. A vote that nobody waits for any more is not asked for again."""
        if owed.undo is not None and (owed.round is None or owed.round.ended):
            return
        assert owed.call is not None
        self._write(node, strand, owed.call.in_full())
        strand.owed.append(owed)

    def drop(self, node: int, error: StoreUnavailable) -> None:
        """Give a connection up: who waits for an answer is told, and what may have happened is undone later."""
        strand, self.strands[node] = self.strands[node], None
        if strand is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError):
            self._poll.unregister(strand.sock)
        self.by_fd.pop(strand.sock.fileno(), None)
        greeted = not (strand.owed and strand.owed[0].call is None)
        for owed in strand.owed:
            if owed.undo is not None and greeted:
                self.undone[node].append(owed.undo)
            if owed.round is not None and owed.call is not None:
                owed.round.answers.append(Answer(node, owed.call, error))
        with contextlib.suppress(OSError, ValueError):  # while the old connection still takes it, say it behind
            strand.send(b"".join(owed.undo.data for owed in strand.owed if owed.undo is not None))
        strand.sock.close()

    def close(self) -> None:
        """Close all, without a word: a strand may belong to the parent too."""
        for strand in self.strands:
            if strand is not None:
                strand.sock.close()
        self.strands = [None] * len(self.strands)
        self.by_fd.clear()

    def _connect(self, node: int, now: float) -> Strand:
        failed = self._failed[node]
        if failed is not None and now < failed[0]:
            raise StoreUnavailable(failed[1].store, failed[1].problem)
        dial, source = self._crew.dialers[node], self._crew.sources[node]
        try:
            strand = Strand(dial.socket(source.addresses[0], self._crew.connecting))
        except StoreUnavailable as error:
            self._failed[node] = (self._crew.now() + PAUSE, error)
            raise
        self._failed[node] = None
        greeting = [*dial.greeting(), *self._crew.greeting()]
        undone = list(self.undone[node])
        self.undone[node].clear()
        strand.owed.extend(Owed(None, None, None, now) for _ in greeting)
        strand.owed.extend(Owed(None, call, None, now) for call in undone)
        self.strands[node] = strand
        self.by_fd[strand.sock.fileno()] = node
        self._poll.register(strand.sock, select.POLLIN)
        self._write(node, strand, b"".join([*greeting, *(call.in_full() for call in undone)]))
        return strand

    def _write(self, node: int, strand: Strand, data: bytes) -> None:
        try:
            sent = strand.send(data)
            if sent != len(data):
                raise BlockingIOError("the connection takes no more")
        except (OSError, ssl.SSLError) as exc:
            error = StoreUnavailable(self._crew.names[node], f"the connection broke: {exc}")
            self.drop(node, error)
            raise error from exc


class BlockingRound:
    """One round, of one thread."""

    __slots__ = ("_bundle", "_crew", "answers", "ended")

    def __init__(self, crew: BlockingNodes, bundle: Bundle) -> None:
        self._crew, self._bundle = crew, bundle
        self.answers = deque[Answer]()
        self.ended = False

    def send(self, node: int, call: Call | Plain, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write, and remember whose the answer will be."""
        try:
            self._bundle.post(node, Owed(self, call, undo, self._crew.now()), behind=behind)
        except StoreUnavailable as error:
            self.answers.append(Answer(node, call, error))

    def send_all(self, call: Call, *, undo: Call | None = None, behind: bool = False) -> None:
        """Write to all."""
        self._bundle.post_all(Owed(self, call, undo, self._crew.now()), call.data, behind=behind)

    async def next(self, until: float) -> Answer | None:
        """Read whoever answers first."""
        return self.read(until)

    def read(self, until: float) -> Answer | None:
        """The same, which is no coroutine."""
        bundle, answers = self._bundle, self.answers
        while not answers:
            left = until - self._crew.now()
            if left <= 0:
                return None
            for fd, _ in bundle.poll(math.ceil(left * 1000)):
                bundle.read(bundle.by_fd.get(fd, -1))
        return answers.popleft()

    def end(self, *, keep: str = "") -> None:
        """Leave the bundle to the next."""
        if not self.ended:
            self.ended = True
            self._crew.give(self._bundle, keep if self._is_owed() else "")

    def _is_owed(self) -> bool:
        return any(owed.round is self for strand in self._bundle.strands if strand for owed in strand.owed)


class BlockingNodes:
    """All nodes, as threads see them."""

    def __init__(
        self,
        sources: Sequence[Source],
        greeting: Callable[[], Sequence[bytes]],
        now: Callable[[], float],
        new_token: Callable[[], str],
        patience: float,
        connecting: float,
    ) -> None:
        self.sources, self.greeting, self.now, self._new_token = sources, greeting, now, new_token
        self.patience, self.connecting = patience, min(connecting, LONGEST_CONNECT)
        self.names = [str(source.addresses[0]) for source in sources]
        self.dialers = [BlockingDialer(source.login) for source in sources]
        self._fresh()

    def _fresh(self) -> None:
        self._mutex = threading.Lock()
        self._closed = False
        self._all: list[Bundle] = []
        self._idle: list[Bundle] = []
        self._kept: dict[str, Bundle] = {}
        self._ears: dict[str, Ear] = {}
        self._idle_ears: list[Ear] = []

    def round(self, token: str = "") -> BlockingRound:
        """Begin a round."""
        bundle = self._taken(token)
        bundle.wake(self.now())
        return BlockingRound(self, bundle)

    def _taken(self, token: str) -> Bundle:
        with self._mutex:
            kept = self._kept.pop(token, None) if token else None
            if kept is not None and kept in self._idle:
                self._idle.remove(kept)
                return kept
            if self._idle:
                return self._idle.pop()
        return self._bundle()

    def give(self, bundle: Bundle, keep: str) -> None:
        """Put a bundle back."""
        bundle.used_at = self.now()
        with self._mutex:
            if keep:
                if len(self._kept) > 10_000:
                    self._kept.clear()
                self._kept[keep] = bundle
            if not self._closed:
                self._idle.append(bundle)
                return
        bundle.close()

    async def expect(self, token: str, within: float) -> bytes:
        """Listen on strands of its own: who waits is a thread, and reads for itself."""
        ear = self._ears.get(token)
        if ear is None:
            with self._mutex:
                ear = self._idle_ears.pop() if self._idle_ears else None
            ear = ear or Ear(self, self._bundle(), self._new_token())
            self._ears[token] = ear
        ear.listen(self.now() + within)
        return ear.channel if ear.heard_by else b""

    async def wait(self, token: str, within: float) -> str:
        """Read until a node calls."""
        ear = self._ears.get(token)
        return ear.wait(token, self.now() + within) if ear is not None else ""

    def forget(self, token: str) -> None:
        """Keep its strands for another."""
        ear = self._ears.pop(token, None)
        if ear is not None:
            with self._mutex:
                self._idle_ears.append(ear)

    def heard(self, bundle: Bundle, reply: Any) -> None:
        """A message that nobody asked for."""
        for ear in list(self._ears.values()):
            if ear.bundle is bundle and isinstance(reply, list) and reply[0] == b"message":
                ear.messages.append(reply[2])

    async def close(self) -> None:
        """Close all that nobody uses; what is in use is closed after that use."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            ears = [*self._ears.values(), *self._idle_ears]
        for bundle in [*idle, *(ear.bundle for ear in ears)]:
            bundle.close()

    def forked(self) -> None:
        """Close our descriptors of the parent's connections."""
        for bundle in self._all:
            bundle.close()
        self._fresh()

    def _bundle(self) -> Bundle:
        bundle = Bundle(self)
        self._all.append(bundle)
        return bundle


class Ear:
    """Strands that listen on one channel."""

    def __init__(self, crew: BlockingNodes, bundle: Bundle, name: str) -> None:
        self._crew, self.bundle = crew, bundle
        self.channel = b"dibs:wake:%b" % name.encode()
        self.messages = deque[bytes]()
        self._subscribe = Plain("SUBSCRIBE", self.channel)
        self._on: list[Strand | None] = [None] * len(crew.names)

    @property
    def heard_by(self) -> int:
        """How many nodes can call us."""
        return sum(a is not None and a is b for a, b in zip(self._on, self.bundle.strands, strict=True))

    def listen(self, until: float) -> None:
        """Subscribe where we are not; return when most nodes have said that they will call."""
        asking = BlockingRound(self._crew, self.bundle)
        missing = [n for n, s in enumerate(self.bundle.strands) if s is None or self._on[n] is not s]
        for node in missing:
            asking.send(node, self._subscribe)
        for _ in missing:
            if 2 * self.heard_by > len(self._on) or (answer := asking.read(until)) is None:
                break
            if isinstance(answer.reply, list):
                self._on[answer.node] = self.bundle.strands[answer.node]

    def wait(self, token: str, until: float) -> str:
        """Read until *token* is called."""
        while True:
            while self.messages:
                word, _, called = self.messages.popleft().partition(b" ")
                if called.decode() == token:
                    return str(word.decode())
            left = until - self._crew.now()
            if left <= 0:
                return ""
            for fd, _ in self.bundle.poll(math.ceil(left * 1000)):
                self.bundle.read(self.bundle.by_fd.get(fd, -1))
