"""Several Redis servers that are asked at the same time: what a round of questions is, in threads and event loops.

A round sends to all at once and hears the answers in the order in which they come. Each node has one connection for
it, so what is sent later, such as giving back what was asked for before, is carried out later, whatever became of the
answer. A client that ends a round need not wait for the answers that are still to come; they are read later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from dibs.stores.redis.port.command import Argument, Script, bulk, command
from dibs.stores.redis.port.errors import code_of

OVERDUE = 1.0
"""Seconds without an answer after which a connection counts as dead, and another one is tried."""

PAUSE = 0.1
"""Seconds before a node that could not be reached is tried again."""

LONGEST_CONNECT = 1.0
"""Seconds that opening one connection may take."""


class NodeCall:
    """One call of a script. Its bytes are made once for all nodes, and only if it is sent."""

    __slots__ = ("_data", "_whole", "arguments", "keys", "script")

    def __init__(self, script: Script, keys: tuple[bytes, ...], *arguments: Argument, whole: bool = False) -> None:
        """*whole*: with the text of the script, because the caller may be gone when the server asks for it."""
        self.script, self.keys, self.arguments, self._whole = script, keys, arguments, whole
        self._data = b""

    @property
    def data(self) -> bytes:
        """The whole command."""
        if not self._data:
            short = head(self.script, self.keys, len(self.arguments)) + b"".join(map(bulk, self.arguments))
            self._data = self.script.in_full(short) if self._whole else short
        return self._data

    def in_full(self) -> bytes:
        """The whole command for a server that has lost the script."""
        return self.data if self._whole else self.script.in_full(self.data)


@lru_cache(maxsize=4096)
def head(script: Script, keys: tuple[bytes, ...], arguments: int) -> bytes:
    """The command up to its arguments: the same whenever the same lock is taken."""
    return script.head(keys, arguments)


class PlainCommand:
    """A command that is no script."""

    __slots__ = ("arguments", "data")

    def __init__(self, *arguments: Argument) -> None:
        self.arguments, self.data = arguments, command(*arguments)

    def in_full(self) -> bytes:
        """The command again: it needs no script, so no server can have lost it."""
        return self.data


class NodeAnswer(NamedTuple):
    """What one node said, or a `StoreUnavailable`: it could not be asked, did not answer, or answered with an error."""

    node: int
    call: NodeCall | PlainCommand
    reply: Any


class Asker:
    """The task or thread that has asked, and the answers it has got so far."""

    __slots__ = ("answers", "ended")

    def __init__(self) -> None:
        self.answers = deque[NodeAnswer]()
        self.ended = False

    def hear(self, answer: NodeAnswer) -> None:
        """Keep *answer*, unless the round is over."""
        if not self.ended:
            self.answers.append(answer)


class Owed(NamedTuple):
    """An answer that a node owes."""

    to: Asker | None
    call: NodeCall | PlainCommand | None
    """None: it belongs to the greeting."""
    undo: NodeCall | None
    since: float

    @property
    def is_wanted(self) -> bool:
        """Whether a server that has lost the script is asked again: not for a vote that is no longer waited for."""
        return self.undo is None or (self.to is not None and not self.to.ended)


def is_unknown(error: Exception) -> bool:
    """Whether a server says that it does not know the script."""
    return str(error).startswith("NOSCRIPT")


def keys_of(call: NodeCall | PlainCommand | None) -> tuple[bytes, ...]:
    """The keys that *call* is about."""
    return call.keys if isinstance(call, NodeCall) else ()


def is_replica(error: Exception) -> bool:
    """Whether a server says that it takes no writes. Its memory is another's then, so it is greeted when it does."""
    return code_of(error) == "READONLY"


class Round(Protocol):
    """One round of questions, for one task or thread."""

    def send(
        self, node: int, call: NodeCall | PlainCommand, *, undo: NodeCall | None = None, behind: bool = False
    ) -> None:
        """Ask *node*. It never blocks for long and never raises: what goes wrong is an answer.

        *undo* is said to the node if the answer does not come and the connection has to be given up. A node that
        owes an answer for too long is not asked, unless *behind*: then it is told behind what it was asked before.
        """

    def send_all(self, call: NodeCall, *, undo: NodeCall | None = None, behind: bool = False) -> None:
        """Ask every node the same."""

    async def next(self, until: float) -> NodeAnswer | None:
        """The next answer; None if there is none up to the moment *until*."""

    def end(self, *, keep: str = "") -> None:
        """End the round: no more answers are heard. *keep* is a granted token: its release is told what is owed."""


class Nodes(Protocol):
    """All nodes, for threads or for an event loop."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the nodes, for messages."""

    def round(self, token: str = "") -> Round:
        """Begin a round; with *token*: one that gives it back, so that no answer that is still owed makes a grant."""

    async def expect(self, token: str, within: float) -> bytes:
        """Listen for *token*; return the channel on which nodes call it, empty if none can be heard."""

    async def wait(self, token: str, within: float) -> str:
        """Return ``now`` or ``soon`` when a node calls *token*, or nothing after *within* seconds."""

    def forget(self, token: str) -> None:
        """Forget *token*, which has stopped waiting."""

    async def close(self) -> None:
        """Close the connections."""

    def forked(self) -> None:
        """Forget the parent's connections."""
