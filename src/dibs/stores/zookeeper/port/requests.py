"""The requests that the store sends, and what their answers mean to it.

kazoo writes them, but not through its methods: those make an object and switch threads for each answer, cannot send
several requests at once, and know no container nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Event

RIGHTS = (
    "the user that logs in needs the right to create nodes in the chroot (in / if there is no chroot yet), and all "
    "rights on the nodes that others made there; nodes are private to the user that made them, unless the URL says "
    "private=no"
)
"""The remedy when ZooKeeper refuses a right."""

Request = Any
"""One request as kazoo's connection takes it."""

EPHEMERAL = 1
EPHEMERAL_SEQUENTIAL = 3
CONTAINER = 4


class No(Enum):
    """An answer that the store expects to get now and then."""

    NODE = "there is no such node"
    ROOM = "there is such a node already"
    MATCH = "the node has another version"
    EFFECT = "another request of the same transaction was refused"


REFUSALS = {
    NoNodeError: No.NODE,
    NodeExistsError: No.ROOM,
    BadVersionError: No.MATCH,
    RolledBackError: No.EFFECT,
    RuntimeInconsistency: No.EFFECT,
}


class SessionEnded(StoreUnavailable):
    """The session has ended, and all its nodes with it: a request that was sent in it has no effect now."""


class Node(NamedTuple):
    """A node's data, and what the server says of the node."""

    data: bytes
    fence: int
    """The zxid of its creation."""
    owner: int
    """The id of the session with which it ends; 0 if it is persistent."""
    made_at: float
    """Unix time, by the server's clock."""
    written_at: float
    version: int
    """How often it was written to."""


class CreateContainer(wire.Create2):  # type: ignore[misc]
    """Create a node that the server removes some time after its last child is gone."""

    type = 19


def create(path: str, data: bytes, *, private: bool) -> Request:
    """Create a node that ends with the session; the server adds a number to its name. Answers its path and `Node`."""
    return wire.Create2(path, data, _acl(private), EPHEMERAL_SEQUENTIAL)


def passing(path: str, data: bytes, *, private: bool) -> Request:
    """Create a node that ends with the session, with exactly that name. In a transaction it answers its path only."""
    return wire.Create2(path, data, _acl(private), EPHEMERAL)


def container(path: str, *, private: bool) -> Request:
    """Create a parent node that the server removes when its children are gone."""
    return CreateContainer(path, b"", _acl(private), CONTAINER)


def lasting(path: str, data: bytes = b"", *, private: bool) -> Request:
    """Create a node that stays. In a transaction it answers its path only."""
    return wire.Create2(path, data, _acl(private), 0)


def children(path: str, watcher: Callable[[Any], None] | None = None) -> Request:
    """Answers the names of the children. *watcher* is called when one comes or goes, and when the connection breaks."""
    return wire.GetChildren(path, watcher)


def read(path: str, watcher: Callable[[Any], None] | None = None) -> Request:
    """Answers a `Node`. *watcher* is called when it changes or goes, and when the connection breaks."""
    return wire.GetData(path, watcher)


def is_end(event: object) -> bool:
    """Whether what a watcher is called with says that the node is gone."""
    return isinstance(event, WatchedEvent) and event.type == EventType.DELETED


def delete(path: str) -> Request:
    """Delete a node, whatever its version."""
    return wire.Delete(path, -1)


def write(path: str, data: bytes, version: int = -1) -> Request:
    """Write a node's data, if it has that version; -1 stands for any."""
    return wire.SetData(path, data, version)


def check(path: str) -> Request:
    """In a transaction: the node is there, whatever its version."""
    return wire.CheckVersion(path, -1)


def together(*requests: Request) -> Request:
    """All or nothing, and decided by the leader with a quorum. Answers a list of answers."""
    return wire.Transaction(list(requests))


def catch_up(path: str) -> Request:
    """Let the server we talk to learn all that the leader has committed so far."""
    return wire.Sync(path)


class Replies:
    """The answers to requests that were sent together; kazoo's thread adds them, in the order of the requests."""

    __slots__ = ("_event", "_shown", "_values", "_wanted")

    def __init__(self, wanted: int, event: Event, shown: str) -> None:
        self._wanted, self._event, self._shown = wanted, event, shown
        self._values: list[Any] = []

    @property
    def complete(self) -> bool:
        """Whether all answers are there."""
        return len(self._values) >= self._wanted

    def set(self, value: object) -> None:
        """Add one answer. kazoo calls this."""
        self._values.append(value)
        if self.complete:
            self._event.set()

    def set_exception(self, error: Exception) -> None:
        """Add one answer that is an error. kazoo calls this."""
        self.set(error)

    async def wait(self, timeout: float) -> bool:
        """Wait for all answers, at most *timeout* seconds; tell whether they are there."""
        return self.complete or await self._event.wait(max(0.0, timeout))

    def answers(self) -> list[Any]:
        """One answer for each request: a value, a `No`, or the `StoreUnavailable` that came instead."""
        known = [self._answer(value) for value in self._values[: self._wanted]]
        missing = OutcomeUnknown(self._shown, "no answer in time")
        return known + [missing] * (self._wanted - len(known))

    def _answer(self, value: Any) -> Any:
        match value:
            case Exception():
                return self._refusal(value)
            case list() if any(isinstance(each, Exception) for each in value):
                return [self._answer(each) for each in value]
            case (str(path), ZnodeStat() as stat):
                return path, _node(b"", stat)
            case (bytes(data), ZnodeStat() as stat):
                return _node(data, stat)
            case _:
                return value

    def _refusal(self, error: Exception) -> No | StoreUnavailable:
        refusal = REFUSALS.get(type(error))
        if refusal is not None:
            return refusal
        if isinstance(error, ConnectionLoss | ConnectionClosedError):  # the latter is a kind of the next
            return OutcomeUnknown(self._shown, "the connection broke")
        if isinstance(error, SessionExpiredError):
            return SessionEnded(self._shown, "the session has ended")
        if isinstance(error, NoAuthError):
            return StoreUnavailable(self._shown, f"it answers NoAuthError; {RIGHTS}")
        return StoreUnavailable(self._shown, f"it answers {type(error).__name__}: {error or 'no further words'}")


def sure(answers: Sequence[Any]) -> Sequence[Any]:
    """Return *answers*; if one of them is a `StoreUnavailable`, raise it."""
    for answer in answers:
        if isinstance(answer, StoreUnavailable):
            raise answer
    return answers


def _node(data: bytes, stat: Any) -> Node:
    return Node(data, stat.czxid, stat.ephemeralOwner, stat.ctime / 1000, stat.mtime / 1000, stat.version)


def _acl(private: bool) -> Any:
    return CREATOR_ALL_ACL if private else OPEN_ACL_UNSAFE
