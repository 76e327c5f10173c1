"""One attempt: ask all nodes at once, have the fence confirmed, stop as soon as it is decided, leave nothing behind.

What an answer means for the attempt is in `vote`; here is what is sent when, and for how long is waited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.redis.values import IMMORTAL
from dibs.stores.redlock import vote
from dibs.stores.redlock.port.nodes import NodeAnswer, NodeCall, Round
from dibs.stores.redlock.vote import FAILED, REFUSED, UNHEARD, Verdict


class AttemptCalls:
    """The calls that one attempt makes: to grant, to confirm a fence, to withdraw."""

    __slots__ = ("confirm", "grant", "withdraw")

    def __init__(self, grant: NodeCall, confirm: Callable[[int], NodeCall], withdraw: NodeCall) -> None:
        self.grant, self.confirm, self.withdraw = grant, confirm, withdraw


class RedlockAttempt:
    """The state of one attempt; the nodes are numbers."""

    __slots__ = (
        *("_asked", "_calls", "_names", "_now", "_quorum"),
        *("causes", "clocks", "forgetful", "refusals", "said", "strangers"),
    )

    def __init__(self, names: list[str], quorum: int, calls: AttemptCalls, now: Callable[[], float]) -> None:
        count = len(names)
        self._names, self._quorum, self._calls, self._now = names, quorum, calls, now
        self.said = [UNHEARD] * count
        self._asked = [0] * count
        self.refusals: dict[int, list[Any]] = {}
        """What the nodes that refused said, by node: who has the lock there."""
        self.causes: dict[int, StoreUnavailable] = {}
        """Why a node did not vote."""
        self.strangers: set[int] = set()
        """Nodes that lost their memory, or belong to another set."""
        self.forgetful: set[int] = set()
        """Those of them that belong to no set."""
        self.clocks: list[tuple[int, int]] = []
        """Nodes, and what their clocks showed, in µs."""

    async def run(self, asking: Round, patience: float, until: float) -> int:
        """Ask; return the fence, or 0. Whatever was not won is given back, also if this is cancelled."""
        fence = 0
        try:
            asking.send_all(self._calls.grant, undo=self._calls.withdraw)
            if await self._decided(asking, patience, until) is Verdict.WON:
                fence = vote.fence_of(self.said)
        finally:
            if not fence:
                self.give_back(asking)
        if not fence:
            await self._understand(asking, patience, until)
        return fence

    def give_back(self, asking: Round) -> None:
        """Take every vote back that we have or may have, on the connection and behind the request."""
        for node, each in enumerate(self.said):
            if each >= UNHEARD or isinstance(self.causes.get(node), OutcomeUnknown):
                asking.send(node, self._calls.withdraw, behind=True)

    @property
    def is_busy(self) -> bool:
        """Whether others have so many votes that no majority is left, or a majority answered and was not for us."""
        count, refusals = len(self.said), len(self.refusals)
        return refusals > count - self._quorum or (refusals > 0 and refusals + vote.votes(self.said) >= self._quorum)

    async def _decided(self, asking: Round, patience: float, until: float) -> Verdict:
        end = min(self._now() + patience, until)
        while (answer := await asking.next(end)) is not None:
            self._hear(answer)
            verdict = vote.verdict(self.said, self._quorum)
            if verdict is not Verdict.OPEN:
                return verdict
            if self._raise(asking):
                end = min(self._now() + patience, until)
        return Verdict.LOST

    async def _understand(self, asking: Round, patience: float, until: float) -> None:
        """It is lost and given back: listen until it is clear whether others have the lock, or the nodes failed."""
        end = min(self._now() + patience, until)
        while UNHEARD in self.said and not self.is_busy and (answer := await asking.next(end)) is not None:
            self._hear(answer)
        for node, each in enumerate(self.said):
            if each == UNHEARD:
                self.causes[node] = OutcomeUnknown(self._names[node], f"no answer within {patience:.3g} s")

    def _raise(self, asking: Round) -> bool:
        """Ask the nodes with a lower fence to rise; tell whether there were any."""
        lower = vote.to_raise(self.said, self._quorum)
        if not lower:
            return False
        fence, any_asked = vote.fence_of(self.said), False
        for node in lower:
            if self._asked[node] < fence:
                self._asked[node], any_asked = fence, True
                asking.send(node, self._calls.confirm(fence))
        return any_asked

    def _hear(self, answer: NodeAnswer) -> None:
        node, _, reply = answer
        if reply.__class__ is bytes:
            fence, now_us = reply.split()
            self.said[node] = vote.heard(self.said[node], int(fence))
            self.clocks.append((node, int(now_us)))
        elif isinstance(reply, list):
            self._refused(node, reply)
        elif answer.call is not self._calls.withdraw:
            self.causes[node], self.said[node] = reply, FAILED

    def _refused(self, node: int, reply: list[Any]) -> None:
        kind = reply[0]
        if kind == b"held":
            self.refusals[node], self.said[node] = reply, REFUSED
            self.clocks.append((node, int(reply[2])))
        elif kind == b"gone":
            self.said[node] = REFUSED
        else:
            if kind == b"stranger":
                self.strangers.add(node)
                if not reply[1]:
                    self.forgetful.add(node)
            self.causes[node], self.said[node] = StoreUnavailable(self._names[node], why(reply)), FAILED


def why(reply: list[Any]) -> str:
    """Why a node that is there does not vote."""
    kind = reply[0]
    if kind == b"stranger":
        if reply[1]:
            return "it belongs to another set of nodes"
        return "it is new or lost its memory, and does not vote until it has waited and was synchronised"
    if kind == b"immortal":
        return f"its key {IMMORTAL}"
    if kind == b"ahead":
        return "its clock is more than a day behind those of the others; set it right"
    return f"its fence is {reply[1]!r}, and none can come after it; set it to a smaller one that is above all in use"
