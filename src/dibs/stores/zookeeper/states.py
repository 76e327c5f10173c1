"""The states of a ticket, on three axes that do not depend on each other, and which event leads from which to which.

An event that is not in a table is a fault of this package. What the servers tell us may come in any state; a request
may only be sent in the states that have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

StateT = TypeVar("StateT", bound=Enum)
EventT = TypeVar("EventT", bound=Enum)


class IllegalTransition(AssertionError):
    """An event came in a state that does not know it: a fault of dibs."""


class NodeState(Enum):
    """Whether the node of a ticket is on the servers, as far as we know."""

    ABSENT = "there is no node"
    UNSURE = "a request that creates or moves the node, or its session, ended without an answer: `find` looks for it"
    STANDS = "the node is there"
    DELETING = "the node is there, unless a request to delete it was carried out without an answer"


class NodeEvent(Enum):
    """What happens to the node."""

    CREATE_SENT = "a request to create it is about to be sent"
    MOVE_SENT = "a request to move it to another session is about to be sent"
    DELETE_SENT = "a request to delete it is about to be sent"
    FOUND = "the servers say that it is there"
    GONE = "the servers say that it is not there"
    SESSION_LOST = "one of the two sessions in which it may be has ended"


class TurnState(Enum):
    """Whether a ticket has its turn, and whether its owner still wants it."""

    WAITING = "it waits for its turn"
    HOLDING = "it holds the lock"
    GIVEN_UP = "its owner gave it up while it waited, so its node is only to be deleted"
    RELEASING = "its owner gave it up while it held the lock, so its node is only to be deleted"


class TurnEvent(Enum):
    """What its owner does, or what the queue says."""

    ASKED = "its owner asks whether it has its turn"
    GRANTED = "the queue says that it has its turn"
    QUEUED = "the queue says that others are ahead"
    LEFT = "its owner gives it up"


class WatchState(Enum):
    """Whether the servers tell us when the node of a holder changes. As always in ZooKeeper, a watch fires once."""

    UNSET = "there is no watch"
    SET = "the watch is set, and has not fired"
    FIRED = "the watch has fired: the node may be gone"


class WatchEvent(Enum):
    """What happens to the watch."""

    SENT = "a request to set it is about to be sent"
    CALLED = "it fired"
    FAILED = "the request to set it was not answered"


NODE: Final[Mapping[tuple[NodeState, NodeEvent], NodeState]] = {
    (NodeState.ABSENT, NodeEvent.CREATE_SENT): NodeState.UNSURE,
    (NodeState.STANDS, NodeEvent.MOVE_SENT): NodeState.UNSURE,
    (NodeState.DELETING, NodeEvent.MOVE_SENT): NodeState.UNSURE,
    (NodeState.STANDS, NodeEvent.DELETE_SENT): NodeState.DELETING,
    (NodeState.DELETING, NodeEvent.DELETE_SENT): NodeState.DELETING,
    (NodeState.ABSENT, NodeEvent.SESSION_LOST): NodeState.ABSENT,
    (NodeState.UNSURE, NodeEvent.SESSION_LOST): NodeState.UNSURE,
    (NodeState.STANDS, NodeEvent.SESSION_LOST): NodeState.UNSURE,
    (NodeState.DELETING, NodeEvent.SESSION_LOST): NodeState.UNSURE,
    **{(state, NodeEvent.FOUND): NodeState.STANDS for state in NodeState},
    **{(state, NodeEvent.GONE): NodeState.ABSENT for state in NodeState},
}
"""A node stays *deleting* when its owner asks again: if the node then is gone, the first release has done it."""

TURN: Final[Mapping[tuple[TurnState, TurnEvent], TurnState]] = {
    (TurnState.WAITING, TurnEvent.ASKED): TurnState.WAITING,
    (TurnState.HOLDING, TurnEvent.ASKED): TurnState.HOLDING,
    (TurnState.GIVEN_UP, TurnEvent.ASKED): TurnState.WAITING,
    (TurnState.RELEASING, TurnEvent.ASKED): TurnState.HOLDING,
    (TurnState.WAITING, TurnEvent.GRANTED): TurnState.HOLDING,
    (TurnState.HOLDING, TurnEvent.GRANTED): TurnState.HOLDING,
    (TurnState.GIVEN_UP, TurnEvent.GRANTED): TurnState.RELEASING,
    (TurnState.RELEASING, TurnEvent.GRANTED): TurnState.RELEASING,
    (TurnState.WAITING, TurnEvent.QUEUED): TurnState.WAITING,
    (TurnState.HOLDING, TurnEvent.QUEUED): TurnState.WAITING,
    (TurnState.GIVEN_UP, TurnEvent.QUEUED): TurnState.GIVEN_UP,
    (TurnState.RELEASING, TurnEvent.QUEUED): TurnState.GIVEN_UP,
    (TurnState.WAITING, TurnEvent.LEFT): TurnState.GIVEN_UP,
    (TurnState.HOLDING, TurnEvent.LEFT): TurnState.RELEASING,
    (TurnState.GIVEN_UP, TurnEvent.LEFT): TurnState.GIVEN_UP,
    (TurnState.RELEASING, TurnEvent.LEFT): TurnState.RELEASING,
}
"""A ticket that is given up stays so whatever the queue says, until its owner asks again."""

WATCH: Final[Mapping[tuple[WatchState, WatchEvent], WatchState]] = {
    **{(state, WatchEvent.SENT): WatchState.SET for state in WatchState},
    **{(state, WatchEvent.CALLED): WatchState.FIRED for state in WatchState},
    (WatchState.UNSET, WatchEvent.FAILED): WatchState.UNSET,
    (WatchState.SET, WatchEvent.FAILED): WatchState.UNSET,
    (WatchState.FIRED, WatchEvent.FAILED): WatchState.FIRED,
}
"""kazoo's thread notes *called*, ours the others. Both may come at once, so the first two depend on no state before."""


def after(table: Mapping[tuple[StateT, EventT], StateT], state: StateT, event: EventT) -> StateT:
    """The state that follows *state* when *event* happens; `IllegalTransition` if *table* has none."""
    following = table.get((state, event))
    if following is None:
        raise IllegalTransition(f"{event.name} ({event.value}) in the state {state.name} ({state.value})")
    return following
