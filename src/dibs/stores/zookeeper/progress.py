"""How far a ticket has come: what is noted of its node, its turn, and the watch that a holder sets on its own node."""

from __future__ import annotations

from dibs.stores.zookeeper.states import (
    NODE,
    TURN,
    WATCH,
    NodeEvent,
    NodeState,
    TurnEvent,
    TurnState,
    WatchEvent,
    WatchState,
    after,
)


class PlaceProgress:
    """The three states of a ticket. They change by events only, as the tables in `states` say."""

    def __init__(self) -> None:
        self.node_state, self.turn_state, self.watch_state = NodeState.ABSENT, TurnState.WAITING, WatchState.UNSET

    def note_node(self, event: NodeEvent) -> None:
        """Note what happens to the node. A request is noted before it is sent: an interrupt may come right after."""
        self.node_state = after(NODE, self.node_state, event)

    def note_turn(self, event: TurnEvent) -> None:
        """Note what the owner does, or what the queue says."""
        self.turn_state = after(TURN, self.turn_state, event)

    def note_watch(self, event: WatchEvent) -> None:
        """Note what happens to the watch on the node."""
        self.watch_state = after(WATCH, self.watch_state, event)

    @property
    def has_node(self) -> bool:
        """Whether the node is there, as far as we know."""
        return self.node_state in {NodeState.STANDS, NodeState.DELETING}

    @property
    def is_unsure(self) -> bool:
        """Whether there may be a node whose path we do not know."""
        return self.node_state is NodeState.UNSURE

    @property
    def is_granted(self) -> bool:
        """Whether the ticket has its turn, even if its owner has given it up since."""
        return self.turn_state in {TurnState.HOLDING, TurnState.RELEASING}

    @property
    def is_left(self) -> bool:
        """Whether the owner gave the ticket up, so that its node is only to be deleted."""
        return self.turn_state in {TurnState.GIVEN_UP, TurnState.RELEASING}

    @property
    def holds(self) -> bool:
        """Whether the owner holds the lock by this ticket."""
        return self.turn_state is TurnState.HOLDING
