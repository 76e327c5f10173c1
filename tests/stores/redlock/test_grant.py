"""What an attempt at a Redlock makes of answers that come in a certain order, at certain moments. Nodes are lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime.run import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redlock import scripts
from dibs.stores.redlock.admission import Admission
from dibs.stores.redlock.broadcast import Broadcast
from dibs.stores.redlock.grant import Granting
from dibs.stores.redlock.options import RedlockOptions
from dibs.stores.redlock.port.nodes import NodeAnswer, NodeCall, PlainCommand
from dibs.stores.store import Ask

WITHIN = 5.0

LATER = (-1, None, 0.0)
"""In the place of an answer: all that follow come after they were waited for."""


class Clock(ThreadRuntime):
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = 100.0
        self.now = lambda: self.moment


class Nodes:
    """Three nodes, and what they answer: one after the other, each after some seconds."""

    names = ("a", "b", "c")

    def __init__(self, clock: Clock, answers: list[tuple[int, Any, float]]) -> None:
        self._clock, self._answers = clock, answers
        self.sent: list[tuple[int, NodeCall | PlainCommand]] = []

    def round(self, token: str = "") -> Nodes:
        return self

    def send(
        self, node: int, call: NodeCall | PlainCommand, *, undo: NodeCall | None = None, behind: bool = False
    ) -> None:
        self.sent.append((node, call))

    def send_all(self, call: NodeCall, *, undo: NodeCall | None = None, behind: bool = False) -> None:
        for node in range(3):
            self.send(node, call)

    async def next(self, until: float) -> NodeAnswer | None:
        if not self._answers or self._answers[0] == LATER:
            del self._answers[:1]
            self._clock.moment = max(self._clock.moment, until)
            return None
        node, reply, seconds = self._answers.pop(0)
        self._clock.moment += seconds
        return NodeAnswer(node, self.sent[node][1], reply)

    def end(self, *, keep: str = "") -> None:
        self.kept = keep

    def taken_back(self) -> list[int]:
        """The nodes that were told to take the vote back."""
        return [node for node, call in self.sent if isinstance(call, NodeCall) and call.script is scripts.WITHDRAW]

    async def expect(self, token: str, within: float) -> bytes:
        return b""

    async def wait(self, token: str, within: float) -> str:
        return ""

    def forget(self, token: str) -> None:
        pass

    async def close(self) -> None:
        pass

    def forked(self) -> None:
        pass


Asking = Callable[..., tuple[Nodes, StoreUnavailable]]


@pytest.fixture
def failing() -> Asking:
    """Asks once, with a fence that is not granted."""

    def ask(*answers: tuple[int, Any, float]) -> tuple[Nodes, StoreUnavailable]:
        clock = Clock()
        nodes = Nodes(clock, list(answers))
        broadcast = Broadcast(nodes, clock)
        admission = Admission(nodes, broadcast.quorum, clock, broadcast.shown, wait=True)
        admission.set = "known"
        granting = Granting(broadcast, RedisNaming("default"), admission, clock, RedlockOptions())
        granting._clocks._listened_at = clock.moment  # nobody is looked for
        with pytest.raises(StoreUnavailable) as error:
            run(granting.grant(Ask("x", "token", 30.0, "", queue=False), WITHIN))
        return nodes, error.value

    return ask


def test_a_majority_that_does_not_agree_on_a_fence_is_not_called_too_few_votes(failing: Asking) -> None:
    nodes, error = failing((0, b"10 1", 0.0), (1, b"11 1", 0.0), (2, b"12 1", 0.0))
    assert error.problem.startswith("3 of 3 nodes gave their vote, but fewer than 2 confirmed one fence in time")
    assert nodes.taken_back() == [0, 1, 2]


def test_votes_that_come_too_late_are_not_called_too_few(failing: Asking) -> None:
    nodes, error = failing((0, b"10 1", 0.0), LATER, (1, b"10 1", 0.0), (2, b"10 1", 0.0))
    assert error.problem.startswith("3 of 3 nodes gave their vote, but fewer than 2 gave it in time")
    assert nodes.taken_back() == [0, 1, 2]


def test_too_few_votes_are_called_that(failing: Asking) -> None:
    _, error = failing((0, b"10 1", 0.0))
    assert error.problem == "1 of 3 nodes gave their vote, 2 are needed"


def test_an_attempt_that_stood_still_past_its_budget_is_given_back(failing: Asking) -> None:
    """A node may have forgotten its vote meanwhile, and have been let in again without it."""
    nodes, error = failing((0, b"10 1", 0.0), (1, b"10 1", WITHIN + 1))
    assert isinstance(error, OutcomeUnknown)
    assert "stood still" in error.problem
    assert nodes.taken_back() == [0, 1, 2]
    assert nodes.kept == ""
