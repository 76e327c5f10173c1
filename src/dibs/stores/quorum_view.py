"""What several nodes say of the same locks, as one: who holds them, who waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dibs.holder import Eviction, Holder, LockState
from dibs.stores import redis_values as values


class Vote(NamedTuple):
    """Who has a node's vote for a lock."""

    value: bytes
    left_ms: int
    now_us: int

    @property
    def token(self) -> str:
        """Whose it is; the whole value if another program set it."""
        read = values.read_value(self.value)
        return read.token.partition("!")[0] if read is not None else self.value.decode("utf-8", "replace")

    @property
    def fence(self) -> int:
        """Its fence; 0 if another program set it."""
        read = values.read_value(self.value)
        return read.fence if read is not None else 0

    @property
    def since_us(self) -> int:
        """Since when it has it, by the node's clock."""
        read = values.read_value(self.value)
        return read.since_us if read is not None else 0


def holder_of(name: str, votes: Sequence[Vote], missing: int, quorum: int) -> Holder | None:
    """Who holds *name*: who has a quorum, if the nodes that are missing vote for the same one."""
    if not votes:
        return None
    token, count = Counter(vote.token for vote in votes).most_common(1)[0]
    if count + missing < quorum:
        return None
    theirs = [vote for vote in votes if vote.token == token]
    best = max(theirs, key=lambda vote: (vote.fence, -vote.since_us))  # the same one, whoever answers first
    return values.holder(name, best.value, best.now_us, sorted(vote.left_ms for vote in theirs)[-min(quorum, count)])


def state_of(name: str, replies: Sequence[Any], missing: int, quorum: int, remarks: tuple[str, ...]) -> LockState:
    """All that is known of *name*, by the answers of the script SHOW."""
    votes, fence = [], 0
    waiting: dict[bytes, Holder] = {}
    evictions: list[Eviction] = []
    for now_text, value, left, last, line, tickets, evicted, _ in replies:
        fence = max(fence, int(last or 0))
        if value is not None:
            votes.append(Vote(value, left, int(now_text)))
        waiting = {**dict(_tickets(name, int(now_text), line, tickets)), **waiting}
        eviction = values.eviction(evicted)
        if eviction is not None:
            evictions.append(eviction)
    holder = holder_of(name, votes, missing, quorum)
    in_order = sorted(waiting.values(), key=lambda who: who.since)
    last_eviction = max(evictions, key=lambda each: each.at, default=None)
    return LockState(name, fence, holder, tuple(in_order), last_eviction, remarks)


def _tickets(name: str, now_us: int, line: Sequence[bytes], tickets: Sequence[bytes]) -> Iterable[tuple[bytes, Holder]]:
    facts = dict(zip(tickets[::2], tickets[1::2], strict=True))
    for token, since in zip(line[::2], line[1::2], strict=True):
        if token in facts and values.still_counts(facts[token], now_us):
            yield token, values.waiting(name, facts[token], since)
