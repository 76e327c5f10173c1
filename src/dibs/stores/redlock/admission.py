"""Meets the nodes for the first time, and lets those in again that lost their memory. What is right is in
`members`; here it is asked for and said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.redlock import members
from dibs.stores.redlock.member_scripts import JOIN, NODE, RESEED, STATE
from dibs.stores.redlock.members import Member
from dibs.stores.redlock.port.nodes import NodeCall, Nodes

LOOK_AGAIN = 0.5
"""Seconds between two looks at nodes that do not vote."""

GLANCE = 0.1
"""Seconds that such a look may take: meanwhile a caller waits for a lock."""


class Admission:
    """Which nodes vote: founds the set, and lets nodes in again that have waited."""

    def __init__(self, nodes: Nodes, quorum: int, runtime: Runtime, shown: str, *, wait: bool) -> None:
        self._nodes, self._quorum, self._runtime, self._shown, self._wait = nodes, quorum, runtime, shown, wait
        self.set = ""
        """What the nodes call the set they belong to; empty before the first contact."""
        self._look_at = 0.0

    async def meet(self, patience: float) -> list[Member | None]:
        """Learn which set this is, and found it if all its nodes are new."""
        seen, causes = await self.look("meet", patience)
        known = members.known_set(self._nodes.names, seen)
        self.set = known or await self._found(seen, causes, patience)
        return seen

    async def let_in(self, patience: float, *, at_once: bool) -> list[Member | None]:
        """See whether nodes that do not vote may do so again: at most twice a second, unless *at_once*.

        Returns what the nodes said; empty if no node was asked.
        """
        now = self._runtime.now()
        if now < self._look_at and not at_once:
            return []
        self._look_at = now + LOOK_AGAIN
        seen, causes = await self.look("note", min(patience / 2, GLANCE))
        if self._is_another(seen):
            self.set = members.known_set(self._nodes.names, seen) or await self._found(seen, causes, patience / 2)
        voting = [member for member in seen if member is not None and member.set == self.set]
        calls = {
            node: self._join(member, voting)
            for node, member in enumerate(seen)
            if member is not None and not member.votes and self._may_join(member, seen, voting)
        }
        await self._say(calls, patience / 2)
        return seen

    def _is_another(self, seen: list[Member | None]) -> bool:
        """Whether a majority is there and none of it belongs to the set we know: it was reseeded, or all is lost."""
        there = [member for member in seen if member is not None]
        return len(there) >= self._quorum and not any(member.set == self.set for member in there)

    def _may_join(self, member: Member, seen: list[Member | None], voting: list[Member]) -> bool:
        if not self._wait or members.was_never_let_in(member, seen, self.set):
            return True
        return members.may_return(member, voting, self._quorum)

    async def look(self, how: str, patience: float) -> tuple[list[Member | None], dict[str, BaseException]]:
        """What each node says of itself; None for one that does not answer."""
        nodes = range(len(self._nodes.names))
        replies = await self._say(
            {node: NodeCall(STATE, (NODE,), how, self._runtime.token()) for node in nodes}, patience
        )
        seen: list[Member | None] = []
        causes: dict[str, BaseException] = {}
        for node, name in enumerate(self._nodes.names):
            reply = replies.get(node, StoreUnavailable(name, f"no answer within {patience:.3g} s"))
            if isinstance(reply, list):
                seen.append(members.member_of(reply))
            else:
                seen.append(None)
                causes[name] = reply
        return seen, causes

    async def reseed(self, floor: int, patience: float) -> None:
        """Let all nodes vote from now on, with no fence that is not above *floor*."""
        seen, causes = await self.look("meet", patience)
        there = [member for member in seen if member is not None]
        if len(there) < len(seen):
            raise StoreUnavailable(self._shown, "all nodes have to be there to be reseeded", causes)
        name = members.known_set(self._nodes.names, seen) or members.set_of(there)
        if self.set:  # a newcomer has yet to meet them, for the time by their clocks too
            self.set = name
        call = NodeCall(RESEED, (NODE,), name, len(seen), max(floor, members.floor_of(there)))
        replies = await self._say(dict.fromkeys(range(len(seen)), call), patience)
        failed: dict[str, BaseException] = {}
        for node, name in enumerate(self._nodes.names):
            reply = replies.get(node, OutcomeUnknown(name, f"no answer within {patience:.3g} s"))
            if isinstance(reply, StoreUnavailable):
                failed[name] = reply
        if failed:
            raise StoreUnavailable(self._shown, "not all nodes were reseeded; do it again", failed)

    async def _found(self, seen: list[Member | None], causes: dict[str, BaseException], patience: float) -> str:
        """Begin a set. Nodes that have a memory, but all restarted, wait first, so that no lease outlives them."""
        there = [member for member in seen if member is not None]
        if len(there) < len(seen):
            raise StoreUnavailable(
                self._shown, "none of its nodes votes yet, and all have to be there when a set begins", causes
            )
        if self._wait and not all(member.is_new for member in there):
            there = await self._waited(patience)
        name = members.set_of(there)
        calls = {node: self._join(member, there, name) for node, member in enumerate(there)}
        replies = await self._say(calls, patience)
        if list(replies.values()).count(1) < self._quorum:
            raise StoreUnavailable(self._shown, "too few of its nodes have heard that the set begins; try again")
        return name

    async def _waited(self, patience: float) -> list[Member]:
        seen, causes = await self.look("note", patience)
        there = [member for member in seen if member is not None]
        left = max(members.stays_out_for(there) - member.waited for member in there) if there else 0.0
        if len(there) < len(seen) or left > 0:
            raise StoreUnavailable(
                self._shown,
                f"all its nodes were restarted; they vote again after the longest ttl, in {max(left, 0):.0f} s",
                causes,
            )
        return there

    def _join(self, member: Member, others: list[Member], name: str = "") -> NodeCall:
        floor = members.floor_of(others)
        longest = round(max((other.longest for other in others), default=0.0) * 1000)
        size = len(self._nodes.names)
        return NodeCall(JOIN, (NODE,), name or self.set, size, floor, longest, member.id, member.back)

    async def _say(self, calls: Mapping[int, NodeCall], patience: float) -> dict[int, Any]:
        """Send a command to some nodes, and return the answers that come in time."""
        replies: dict[int, Any] = {}
        asking = self._nodes.round()
        try:
            for node, call in calls.items():
                asking.send(node, call)
            until = self._runtime.now() + patience  # from here: connections may have been opened
            while True:  # its condition is not here because of tests/test_loops.py
                if len(replies) >= len(calls) or (answer := await asking.next(until)) is None:
                    break
                replies[answer.node] = answer.reply
        finally:
            asking.end()
        return replies
