"""The states of a ticket: which event leads where, and what a ticket knows of its node, without a server."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.store import Ask
from dibs.stores.zookeeper.attendance import OVERDUE, Attendance
from dibs.stores.zookeeper.port.requests import Node, Replies, SessionEnded
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.progress import PlaceProgress
from dibs.stores.zookeeper.states import (
    NODE,
    WATCH,
    IllegalTransition,
    NodeEvent,
    NodeState,
    TurnEvent,
    TurnState,
    WatchEvent,
    WatchState,
    after,
)
from dibs.stores.zookeeper.ticket import ZooKeeperTicket

RUNTIME = ThreadRuntime()

SENT_IN = {
    NodeEvent.CREATE_SENT: {NodeState.ABSENT},
    NodeEvent.MOVE_SENT: {NodeState.STANDS, NodeState.DELETING},
    NodeEvent.DELETE_SENT: {NodeState.STANDS, NodeState.DELETING},
}
"""The states in which a request about the node may be sent."""

HOLDING, SHORT = 7, 9
"""The ids of the two sessions of a ticket."""


# --- the tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "event"), list(product(NodeState, NodeEvent)))
def test_a_request_is_sent_only_where_it_makes_sense_and_news_may_come_in_any_state(
    state: NodeState, event: NodeEvent
) -> None:
    if state in SENT_IN.get(event, NodeState):
        assert after(NODE, state, event) in NodeState
    else:
        with pytest.raises(IllegalTransition, match=f"{event.name} .* in the state {state.name}"):
            after(NODE, state, event)


def test_what_was_sent_makes_a_node_unsure_until_the_servers_say_where_it_is() -> None:
    for state, event in product(NodeState, (NodeEvent.CREATE_SENT, NodeEvent.MOVE_SENT)):
        assert NODE.get((state, event), NodeState.UNSURE) is NodeState.UNSURE
    assert NODE[NodeState.UNSURE, NodeEvent.FOUND] is NodeState.STANDS
    assert NODE[NodeState.UNSURE, NodeEvent.GONE] is NodeState.ABSENT
    assert NODE[NodeState.UNSURE, NodeEvent.SESSION_LOST] is NodeState.UNSURE


@pytest.mark.parametrize(("state", "event"), list(product(TurnState, TurnEvent)))
def test_the_queue_decides_who_has_its_turn_and_the_owner_whether_it_is_wanted(
    state: TurnState, event: TurnEvent
) -> None:
    progress = PlaceProgress()
    progress.turn_state = state
    granted, left = progress.is_granted, progress.is_left
    progress.note_turn(event)
    assert progress.is_granted == {TurnEvent.GRANTED: True, TurnEvent.QUEUED: False}.get(event, granted)
    assert progress.is_left == {TurnEvent.LEFT: True, TurnEvent.ASKED: False}.get(event, left)
    assert progress.holds == (progress.is_granted and not progress.is_left)


@pytest.mark.parametrize(("state", "event"), list(product(WatchState, WatchEvent)))
def test_a_watch_that_has_fired_stays_so_until_the_next_is_set(state: WatchState, event: WatchEvent) -> None:
    following = after(WATCH, state, event)
    if event is WatchEvent.FAILED:
        assert following is (WatchState.FIRED if state is WatchState.FIRED else WatchState.UNSET)
    else:
        assert following is {WatchEvent.SENT: WatchState.SET, WatchEvent.CALLED: WatchState.FIRED}[event]


# --- a ticket and its node --------------------------------------------------------------------------------------


class StubSession:
    """A session that shows the nodes it was given, each with the session in which it is."""

    def __init__(self, number: int) -> None:
        self.id, self.ended = number, set[int]()
        self.nodes: dict[str, Node] = {}

    async def ask(self, _until: float, *requests: Any) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        match type(request).__name__:
            case "GetChildren":
                return [path.rpartition("/")[2] for path in self.nodes]
            case "GetData":
                return self.nodes[request.path]
            case _:
                return None


def place_in(session: StubSession) -> ZooKeeperTicket:
    me, ask = Holder("a", 0, "h", 1, "u", "", 0.0, None), Ask("a", "token", 30.0, "", True)
    return ZooKeeperTicket(
        ask, "/dibs/a", cast(ZooKeeperSession, session), me, RUNTIME.event(), lambda: None, RUNTIME.now() + 1
    )


def waiting() -> tuple[ZooKeeperTicket, StubSession, StubSession]:
    """A ticket whose node has moved to the short session."""
    holding, short = StubSession(HOLDING), StubSession(SHORT)
    ticket = place_in(holding)
    ticket.short_session = cast(ZooKeeperSession, short)
    path = f"{ticket.prefix}00000000001"
    holding.nodes[path] = Node(b"", 3, SHORT, 0.0, 0.0, 0)
    ticket.found(path, 3, SHORT)
    return ticket, holding, short


def replies_of(*values: object) -> Replies:
    replies = Replies(1, RUNTIME.event(), "zookeeper://h")
    for value in values:
        replies.set(value)
    return replies


def test_a_node_in_the_other_session_is_looked_for_when_one_ends() -> None:
    ticket, holding, _ = waiting()
    ticket.lost_session()
    assert ticket.is_unsure
    run(ticket.find(RUNTIME.now() + 1))
    assert (ticket.has_node, ticket.node) == (True, next(iter(holding.nodes)))


def test_a_node_in_a_session_that_ended_is_not_found() -> None:
    ticket, _, short = waiting()
    ticket.note_node(NodeEvent.MOVE_SENT)
    short.ended.add(SHORT)
    run(ticket.find(RUNTIME.now() + 1))
    assert (ticket.node_state, ticket.node) == (NodeState.ABSENT, "")
    assert ticket.is_over, "it is known in which session it was"


def test_a_place_with_one_session_has_no_node_when_that_ends() -> None:
    ticket = place_in(StubSession(HOLDING))
    ticket.found(f"{ticket.prefix}0000000001", 3, HOLDING)
    ticket.lost_session()
    assert (ticket.node_state, ticket.node) == (NodeState.ABSENT, "")


def test_an_answer_that_comes_after_its_step_is_noted_by_the_next_one() -> None:
    ticket = place_in(StubSession(HOLDING))
    ticket.note_node(NodeEvent.CREATE_SENT)
    replies = replies_of()
    ticket.creating(replies, 0)
    replies.set((f"{ticket.prefix}0000000001", Node(b"", 3, HOLDING, 0.0, 0.0, 0)))
    assert isinstance(ticket.settle(), tuple)
    assert (ticket.has_node, ticket.fence, ticket.settle()) == (True, 3, None)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (OutcomeUnknown("zookeeper", "no answer"), NodeState.UNSURE),
        (SessionEnded("zookeeper", "it has ended"), NodeState.ABSENT),
        (StoreUnavailable("zookeeper", "it refuses"), NodeState.ABSENT),
    ],
)
def test_a_creation_without_a_node_is_unsure_only_if_nobody_knows(
    answer: StoreUnavailable, state: NodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket, replies = place_in(StubSession(HOLDING)), replies_of()
    monkeypatch.setattr(Replies, "answers", lambda _: [answer])
    ticket.note_node(NodeEvent.CREATE_SENT)
    ticket.creating(replies, 0)
    if type(answer) is StoreUnavailable:
        with pytest.raises(StoreUnavailable, match="it refuses"):
            ticket.settle()
    else:
        assert ticket.settle() is answer
    assert ticket.node_state is state


def test_a_release_that_was_not_answered_is_remembered_when_the_owner_asks_again() -> None:
    ticket = place_in(StubSession(HOLDING))
    ticket.found(f"{ticket.prefix}0000000001", 3, HOLDING)
    ticket.note_turn(TurnEvent.GRANTED)
    ticket.note_turn(TurnEvent.LEFT)
    ticket.note_node(NodeEvent.DELETE_SENT)
    ticket.note_turn(TurnEvent.ASKED)
    assert (ticket.node_state, ticket.holds) == (NodeState.DELETING, True)


def test_a_step_is_over_when_it_says_so_or_some_time_after_it_should_have() -> None:
    attendance = Attendance(10.0)
    late = 10.0 + OVERDUE
    assert (attendance.is_going_on(late - 0.01), attendance.is_over(late - 0.01)) == (True, False)
    assert (attendance.is_going_on(late), attendance.is_over(late)) == (False, False)
    assert attendance.is_over(late + OVERDUE)
    attendance.begin(20.0)
    assert not attendance.is_over(19.0)
    attendance.until = 0.0
    assert attendance.is_over(19.0)
