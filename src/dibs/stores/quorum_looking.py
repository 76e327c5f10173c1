"""What all nodes say of locks, for people: who holds them, who waits, and who does not vote. It changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dibs.errors import StoreUnavailable
from dibs.holder import Holder, LockState
from dibs.ports.redis_nodes import Call
from dibs.stores import quorum_members as members
from dibs.stores import quorum_scripts as scripts
from dibs.stores import quorum_view as view
from dibs.stores import redis_values as values
from dibs.stores.quorum_admission import Admission
from dibs.stores.quorum_everyone import Everyone
from dibs.stores.quorum_member_scripts import NODE
from dibs.stores.redis_keys import Naming

LONGEST_LOOK = 1.0
"""Seconds for which a node is waited for: who looks wants to see those who are there."""


class Looking:
    """The locks of one namespace, seen from outside."""

    def __init__(self, everyone: Everyone, naming: Naming, admission: Admission, *, nodes_wait: bool) -> None:
        self._everyone, self._naming, self._admission, self._nodes_wait = everyone, naming, admission, nodes_wait

    async def show(self, name: str, within: float) -> LockState:
        """Ask all, and tell what they agree on; and which of them do not vote."""
        patience = min(within, LONGEST_LOOK)
        call = Call(scripts.SHOW, (*self._naming.keys(name), NODE))
        replies, causes = await self._everyone.ask_each(call, patience)
        missing, remarks = self._everyone.count - len(replies), await self._remarks(replies, causes, patience)
        return view.state_of(name, list(replies.values()), missing, self._everyone.quorum, remarks)

    async def holders(self, prefix: str, until: float) -> list[Holder]:
        """Look through the keys of all nodes, step by step on each."""
        everyone, pattern = self._everyone, self._naming.pattern(prefix)
        found: dict[str, dict[int, view.Vote]] = {}
        done, causes = set[int](), dict[str, BaseException]()
        asking = everyone.nodes.round()
        try:
            asking.send_all(Call(scripts.LIST, (), b"0", pattern))
            while len(done) + len(causes) < everyone.count and (answer := await asking.next(until)) is not None:
                if isinstance(answer.reply, StoreUnavailable):
                    causes[everyone.names[answer.node]] = answer.reply
                    continue
                cursor, now_us, keys = answer.reply
                self._collect(found, answer.node, int(now_us), keys)
                if cursor == b"0":
                    done.add(answer.node)
                else:
                    asking.send(answer.node, Call(scripts.LIST, (), cursor, pattern))
        finally:
            asking.end()
        everyone.check(len(done), causes)
        missing = everyone.count - len(done)
        seen = [view.holder_of(name, list(votes.values()), missing, everyone.quorum) for name, votes in found.items()]
        return sorted(holder for holder in seen if holder is not None)

    def _collect(self, found: dict[str, dict[int, view.Vote]], node: int, now_us: int, keys: Sequence[Any]) -> None:
        for key, value, left in keys:
            name = self._naming.name(key)
            if name is None or left < 0 or (self._naming.raw and values.read_value(value) is None):
                continue  # not ours; gone or without an end; other data, where we share the keys of a program
            found.setdefault(name, {})[node] = view.Vote(value, left, now_us)

    async def _remarks(
        self, replies: Mapping[int, Any], causes: Mapping[str, BaseException], patience: float
    ) -> tuple[str, ...]:
        remarks = [] if self._nodes_wait else ["a node that lost its memory votes at once"]
        remarks += [f"{name}: {getattr(cause, 'problem', cause)}" for name, cause in causes.items()]
        if not all(reply[-1] for reply in replies.values()):
            remarks += await self._absentees(patience)
        return tuple(remarks)

    async def _absentees(self, patience: float) -> list[str]:
        """Who does not vote, and why; nobody, if nothing was ever asked of any."""
        seen, _ = await self._admission.look("look", patience)
        voting = [member for member in seen if member is not None and member.votes]
        if not voting and all(member is None or member.is_new for member in seen):
            return []
        return [
            f"{name}: {members.standing(member, voting, self._everyone.quorum)}"
            for name, member in zip(self._everyone.names, seen, strict=True)
            if member is not None and not member.votes
        ]
