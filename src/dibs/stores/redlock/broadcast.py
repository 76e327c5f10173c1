"""Sends one call to all nodes, hears them until there are enough answers, and tells the outcome if there are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.redlock import vote
from dibs.stores.redlock.port.nodes import NodeCall, Nodes

Enough = Callable[[Mapping[int, Any]], bool]
"""Whether the answers so far, by node, are enough."""


class Heard(NamedTuple):
    """The answers to one call, by node, and why others gave none."""

    replies: dict[int, Any]
    causes: dict[str, BaseException]
    """Why nodes did not answer, by their names; only looked for where there was not enough."""


class Broadcast:
    """Sends calls to all nodes of a Redlock."""

    def __init__(self, nodes: Nodes, runtime: Runtime) -> None:
        self.nodes, self._runtime = nodes, runtime
        self.names = list(nodes.names)
        self.count, self.quorum = len(self.names), vote.quorum_of(len(self.names))
        self.shown = f"redlock {', '.join(self.names)}"

    async def ask(
        self, call: NodeCall, within: float, enough: Enough, *, token: str = "", behind: bool = False
    ) -> Heard:
        """Send one call to all nodes; returns the answers until there are enough, and why others gave none."""
        until, missing = self._runtime.now() + within, self.count
        replies: dict[int, Any] = {}
        causes: dict[str, BaseException] = {}
        asking = self.nodes.round(token)
        try:
            asking.send_all(call, behind=behind)
            while True:  # its condition is not here because of tests/test_loops.py
                if not missing or (answer := await asking.next(until)) is None:
                    break
                node, _, reply = answer
                missing -= 1
                if isinstance(reply, StoreUnavailable):
                    causes[self.names[node]] = reply
                    continue
                replies[node] = reply
                if enough(replies):
                    return Heard(replies, causes)
        finally:
            asking.end()
        for node, name in enumerate(self.names):
            if node not in replies and name not in causes:
                causes[name] = OutcomeUnknown(name, f"no answer within {within:.3g} s")
        return Heard(replies, causes)

    async def ask_each(self, call: NodeCall, within: float) -> Heard:
        """Send one call to all nodes, and hear every one that answers; `StoreUnavailable` if no majority does."""
        heard = await self.ask(call, within, self._is_complete)
        self.check(len(heard.replies), heard.causes)
        return heard

    def check(self, answered: int, causes: Mapping[str, BaseException]) -> None:
        """Raise `StoreUnavailable` if no majority answered."""
        if answered < self.quorum:
            raise self.unavailable(f"{answered} of {self.count} nodes answered", causes)

    def unavailable(self, problem: str, causes: Mapping[str, BaseException]) -> StoreUnavailable:
        """The error: unknown, if nodes that may have done it would make up a majority; if not, it did not happen."""
        unknown = sum(isinstance(cause, OutcomeUnknown) for cause in causes.values())
        kind = OutcomeUnknown if unknown > self.count - self.quorum else StoreUnavailable
        return kind(self.shown, problem, dict(causes))

    def _is_complete(self, replies: Mapping[int, Any]) -> bool:
        return len(replies) == self.count
