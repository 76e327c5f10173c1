"""A thread's way to one of several Redis servers: a connection, what the server owes on it, and what to undo there.

A server answers in the order in which it was asked. So what it owes is a queue, and a thread that asks without waiting
leaves nothing in disorder: the next one reads the late answers first.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hiredis

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.redis.port.dial import BlockingDialer
from dibs.stores.redis.port.errors import refused
from dibs.stores.redis.port.parser import CHUNK, NOT_YET, new_parser
from dibs.stores.redis.port.source import RedisSource
from dibs.stores.redlock.port.nodes import (
    OVERDUE,
    PAUSE,
    Asker,
    NodeAnswer,
    NodeCall,
    Owed,
    PlainCommand,
    is_replica,
    is_unknown,
    keys_of,
)

USUAL = {bytes, int}
"""Kinds of replies that are nothing but an answer: no error, and no message of a subscription."""

MOST_UNDONE = 100
"""Tokens to be given back to a node that cannot be reached; older ones end by their ttl."""


class BlockingNodeConfig(NamedTuple):
    """Where a node is, and how it is spoken to."""

    name: str
    source: RedisSource
    dial: BlockingDialer
    greeting: Callable[[], Sequence[bytes]]
    now: Callable[[], float]
    patience: float
    """Seconds for which a node may owe an answer and still be asked."""
    connecting: float
    """Seconds that opening a connection may take."""


class ChannelEvents(NamedTuple):
    """Callbacks for connections that come and go, and for messages of subscriptions."""

    opened: Callable[[BlockingChannel], None]
    closed: Callable[[BlockingChannel], None]
    called: Callable[[list[Any]], None]


class BlockingChannel:
    """The way to one node, for one thread at a time."""

    __slots__ = (
        *("_failed", "_feed", "_is_secure", "_next", "_events", "_receive", "_config"),
        *("fd", "name", "node", "owed", "send", "sock", "undone"),
    )

    def __init__(self, node: int, config: BlockingNodeConfig, events: ChannelEvents) -> None:
        self.node, self.name, self._config, self._events = node, config.name, config, events
        self.sock: Any = None
        self.fd = -1
        self.owed = deque[Owed]()
        self.undone = deque[NodeCall](maxlen=MOST_UNDONE)
        self._failed: tuple[float, StoreUnavailable] | None = None

    # --- asking --------------------------------------------------------------------------------------------

    def ask(self, owed: Owed, *, behind: bool) -> None:
        """Send; what goes wrong is an answer."""
        assert owed.to is not None
        assert owed.call is not None
        try:
            self._look(owed.since, behind=behind)
            if self.sock is None:
                self._connect(owed.since)
            self._write(owed.call.data)
        except StoreUnavailable as error:
            owed.to.hear(NodeAnswer(self.node, owed.call, error))
        else:
            self.owed.append(owed)

    def take_back(self, asker: Asker) -> None:
        """Undo what *asker* has asked for and not heard of: on this connection, behind the request."""
        for owed in [each for each in self.owed if each.to is asker and each.undo is not None]:
            assert owed.undo is not None
            try:
                self._write(owed.undo.data)
            except StoreUnavailable:  # it is undone with the next connection
                return
            self.owed.append(Owed(None, owed.undo, None, owed.since))

    def _look(self, now: float, *, behind: bool) -> None:
        """If the node owes answers for long, read what has come; it is not asked more unless *behind*."""
        if not self.owed or now - self.owed[0].since < self._config.patience:
            return
        self.read()
        late = now - self.owed[0].since if self.owed else 0.0
        if late > OVERDUE:
            self.drop(OutcomeUnknown(self.name, "no answer for a long time"))
        elif late >= self._config.patience and not behind:
            raise StoreUnavailable(self.name, f"it has not answered for {late:.3g} s")

    def _write(self, data: bytes) -> None:
        try:
            sent = self.send(data)
            if sent != len(data):
                raise BlockingIOError("the connection takes no more")
        except (OSError, ssl.SSLError) as exc:
            error = StoreUnavailable(self.name, f"the connection broke: {exc}")
            self.drop(error)
            raise error from exc

    # --- hearing -------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Read all replies that have arrived, and hand each to its asker."""
        try:
            piece = self._receive(CHUNK)
            if not piece:
                raise ConnectionResetError("the server closed the connection")
            self._feed(piece)
            owed_all, take = self.owed, self._next
            while (reply := take()) is not NOT_YET:
                if owed_all and (to := owed_all[0].to) is not None and reply.__class__ in USUAL:
                    owed = owed_all.popleft()
                    if not to.ended:
                        to.answers.append(NodeAnswer(self.node, owed.call, reply))  # type: ignore[arg-type]
                else:
                    self._hand_on(reply)
            if self._is_secure and self.sock.pending():
                self.read()
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except (OSError, hiredis.ProtocolError) as exc:
            self.drop(OutcomeUnknown(self.name, f"the connection broke: {exc}"))
        except StoreUnavailable as exc:
            self.drop(exc)

    def _hand_on(self, reply: Any) -> None:
        if not self.owed or (isinstance(reply, list) and reply[:1] == [b"message"]):
            self._events.called(reply)
            return
        owed, name = self.owed.popleft(), self.name
        if isinstance(reply, Exception):
            if owed.call is None:
                error = StoreUnavailable(name, refused(name, reply).problem)
                self._failed = (self._config.now() + PAUSE, error)
                raise error
            if is_unknown(reply):
                self._say_again(owed, owed.call)
                return
            away = is_replica(reply)
            reply = refused(name, reply, keys_of(owed.call))
            if away:
                self.owed.appendleft(owed)
                raise reply  # `read` drops the connection
        if owed.to is not None and owed.call is not None:
            owed.to.hear(NodeAnswer(self.node, owed.call, reply))

    def _say_again(self, owed: Owed, call: NodeCall | PlainCommand) -> None:
        """The server has lost the script. A vote that is no longer waited for is not asked for again."""
        if owed.is_wanted:
            self._write(call.in_full())
            self.owed.append(owed)

    # --- the connection ------------------------------------------------------------------------------------

    def drop(self, error: StoreUnavailable) -> None:
        """Give the connection up: waiting callers are told, and whatever may have happened is undone later."""
        if self.sock is None:
            return
        self._events.closed(self)
        sock, self.sock = self.sock, None
        owed_all, self.owed = self.owed, deque()
        greeted = not (owed_all and owed_all[0].call is None)
        for owed in owed_all:
            if owed.undo is not None and greeted:
                self.undone.append(owed.undo)
            if owed.to is not None and owed.call is not None:
                owed.to.hear(NodeAnswer(self.node, owed.call, error))
        with contextlib.suppress(OSError, ValueError):  # while the old connection still takes it, say it behind
            self.send(b"".join(owed.undo.data for owed in owed_all if owed.undo is not None))
        sock.close()

    def close(self) -> None:
        """Close our descriptor, and send nothing: the connection may be the parent's."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def _connect(self, now: float) -> None:
        failed, config = self._failed, self._config
        if failed is not None and now < failed[0]:
            raise StoreUnavailable(failed[1].store, failed[1].problem)
        try:
            sock = config.dial.socket(config.source.addresses[0], config.connecting)
        except StoreUnavailable as error:
            self._failed = (config.now() + PAUSE, error)
            raise
        self._failed = None
        self._begin(sock)
        greeting, undone = [*config.dial.greeting(), *config.greeting()], list(self.undone)
        self.undone.clear()
        self.owed.extend(Owed(None, None, None, now) for _ in greeting)
        self.owed.extend(Owed(None, call, None, now) for call in undone)
        self._write(b"".join([*greeting, *(call.in_full() for call in undone)]))

    def _begin(self, sock: Any) -> None:
        reader = new_parser()
        self._feed, self._next = reader.feed, reader.gets
        self.sock, self.fd, self.send, self._receive = sock, sock.fileno(), sock.send, sock.recv
        self._is_secure = isinstance(sock, ssl.SSLSocket)
        sock.setblocking(False)
        self._events.opened(self)
