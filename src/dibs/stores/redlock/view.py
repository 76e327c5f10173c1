"""What people are shown: the answers of all nodes, combined. It changes nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dibs.errors import StoreUnavailable
from dibs.holder import Eviction, Holder, LockState
from dibs.stores.redis import values
from dibs.stores.redis.keys import RedisNaming
from dibs.stores.redlock import members, scripts
from dibs.stores.redlock.admission import Admission
from dibs.stores.redlock.broadcast import Broadcast
from dibs.stores.redlock.member_scripts import NODE
from dibs.stores.redlock.port.nodes import NodeCall

LONGEST_LOOK = 1.0
"""Seconds for which a node is waited for: a person who looks wants to see the nodes that are there."""


class Vote(NamedTuple):
    """One node's vote for a lock: which value holds it there."""

    value: bytes
    left_ms: int
    now_us: int

    @property
    def token(self) -> str:
        """The token that has the vote; the whole value if another program set it."""
        read = values.read_value(self.value)
        return read.token.partition("!")[0] if read is not None else self.value.decode("utf-8", "replace")

    @property
    def fence(self) -> int:
        """Its fence; 0 if another program set it."""
        read = values.read_value(self.value)
        return read.fence if read is not None else 0

    @property
    def since_us(self) -> int:
        """Since when it has the vote, by the node's clock."""
        read = values.read_value(self.value)
        return read.since_us if read is not None else 0


class RedlockView:
    """Reads the locks of one namespace, for people."""

    def __init__(self, broadcast: Broadcast, naming: RedisNaming, admission: Admission, *, nodes_wait: bool) -> None:
        self._broadcast, self._naming, self._admission, self._nodes_wait = broadcast, naming, admission, nodes_wait

    async def show(self, name: str, within: float) -> LockState:
        """Ask all nodes; returns the state that they agree on, and which of them do not vote."""
        patience = min(within, LONGEST_LOOK)
        call = NodeCall(scripts.SHOW, (*self._naming.keys(name), NODE))
        replies, causes = await self._broadcast.ask_each(call, patience)
        missing, remarks = self._broadcast.count - len(replies), await self._remarks(replies, causes, patience)
        key = self._naming.keys(name).lock
        return state_of(name, key, list(replies.values()), missing, self._broadcast.quorum, remarks)

    async def holders(self, prefix: str, until: float) -> list[Holder]:
        """Look through the keys of all nodes, step by step on each."""
        broadcast, pattern = self._broadcast, self._naming.pattern(prefix)
        found: dict[str, dict[int, Vote]] = {}
        done, causes = set[int](), dict[str, BaseException]()
        asking = broadcast.nodes.round()
        try:
            asking.send_all(NodeCall(scripts.LIST, (), b"0", pattern))
            while len(done) + len(causes) < broadcast.count and (answer := await asking.next(until)) is not None:
                if isinstance(answer.reply, StoreUnavailable):
                    causes[broadcast.names[answer.node]] = answer.reply
                    continue
                cursor, now_us, keys = answer.reply
                self._collect(found, answer.node, int(now_us), keys)
                if cursor == b"0":
                    done.add(answer.node)
                else:
                    asking.send(answer.node, NodeCall(scripts.LIST, (), cursor, pattern))
        finally:
            asking.end()
        broadcast.check(len(done), causes)
        missing = broadcast.count - len(done)
        seen = [
            holder_of(name, self._naming.keys(name).lock, list(votes.values()), missing, broadcast.quorum)
            for name, votes in found.items()
        ]
        return sorted(holder for holder in seen if holder is not None)

    def _collect(self, found: dict[str, dict[int, Vote]], node: int, now_us: int, keys: Sequence[Any]) -> None:
        for key, value, left in keys:
            name = self._naming.name(key)
            if name is None or left == values.GONE or (self._naming.raw and values.read_value(value) is None):
                continue  # not ours; gone meanwhile; other data, where we share the keys of a program
            found.setdefault(name, {})[node] = Vote(value, left, now_us)

    async def _remarks(
        self, replies: Mapping[int, Any], causes: Mapping[str, BaseException], patience: float
    ) -> tuple[str, ...]:
        remarks = [] if self._nodes_wait else ["a node that lost its memory votes at once"]
        remarks += [f"{name}: {getattr(cause, 'problem', cause)}" for name, cause in causes.items()]
        if not all(reply[-1] for reply in replies.values()):
            remarks += await self._absentees(patience)
        return tuple(remarks)

    async def _absentees(self, patience: float) -> list[str]:
        """The nodes that do not vote, and why; none, if nothing was ever asked of any."""
        seen, _ = await self._admission.look("look", patience)
        voting = [member for member in seen if member is not None and member.votes]
        if not voting and all(member is None or member.is_new for member in seen):
            return []
        return [
            f"{name}: {members.standing(member, voting, self._broadcast.quorum)}"
            for name, member in zip(self._broadcast.names, seen, strict=True)
            if member is not None and not member.votes
        ]


def holder_of(name: str, key: bytes, votes: Sequence[Vote], missing: int, quorum: int) -> Holder | None:
    """The holder of *name*: it has a quorum, if the nodes that are missing vote for it too."""
    if not votes:
        return None
    token, count = Counter(vote.token for vote in votes).most_common(1)[0]
    if count + missing < quorum:
        return None
    theirs = [vote for vote in votes if vote.token == token]
    best = max(theirs, key=lambda vote: (vote.fence, -vote.since_us))  # the same one, whichever node answers first
    lefts = sorted(math.inf if vote.left_ms < 0 else vote.left_ms for vote in theirs)
    left = lefts[-min(quorum, count)]
    return values.holder(name, key, best.value, best.now_us, -1 if math.isinf(left) else left)


def state_of(
    name: str, key: bytes, replies: Sequence[Any], missing: int, quorum: int, remarks: tuple[str, ...]
) -> LockState:
    """All that is known of *name*, by the answers of the script SHOW."""
    votes, fence = [], 0
    waiting: dict[bytes, Holder] = {}
    evictions: list[Eviction] = []
    for now_text, value, left, last, queue, tickets, evicted, _ in replies:
        fence = max(fence, int(last) if last and values.is_number(last) else 0)
        if value is not None:
            votes.append(Vote(value, left, int(now_text)))
        waiting = {**dict(_tickets(name, int(now_text), queue, tickets)), **waiting}
        eviction = values.eviction(evicted)
        if eviction is not None:
            evictions.append(eviction)
    holder = holder_of(name, key, votes, missing, quorum)
    in_order = sorted(waiting.values(), key=lambda who: who.since)
    last_eviction = max(evictions, key=lambda each: each.at, default=None)
    return LockState(name, fence, holder, tuple(in_order), last_eviction, remarks)


def _tickets(
    name: str, now_us: int, queue: Sequence[bytes], tickets: Sequence[bytes]
) -> Iterable[tuple[bytes, Holder]]:
    facts = dict(zip(tickets[::2], tickets[1::2], strict=True))
    for token, since in zip(queue[::2], queue[1::2], strict=True):
        if token in facts and values.still_counts(facts[token], now_us):
            yield token, values.waiting(name, facts[token], since)
