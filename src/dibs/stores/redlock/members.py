"""Which nodes vote: those that remember. What is known of a node, and when one that forgot may vote again.

A confirmed fence is remembered by the nodes that confirmed it, so a node that lost its memory must not vote as if it
had one. It is recognised by its missing mark, and comes back in this order: it stays out for longer than the longest
ttl, so that every attempt and every lease that counted on its old memory has ended; then the highest fence of a
quorum of the *others* is read and becomes its floor. A quorum that had confirmed a fence has all but one of its
nodes among the others, and any quorum of these meets it. Reading before waiting, or either alone, is not enough: the
model of the tests has the counter-examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dibs.errors import Misuse
from dibs.stores.redlock.options import LONGEST_ATTEMPT


class Member(NamedTuple):
    """What one node says of itself."""

    now_us: int
    id: str
    run: str
    """Which run of its server it is in; empty if the user may not ask."""
    set: str
    """The set of nodes that it votes in; empty if it does not vote."""
    size: int
    floor: int
    highest: int
    longest: float
    """The longest ttl that it was asked for, in seconds."""
    back: str
    """Since when it is known not to vote, in µs; empty if it is not."""
    away: bool
    """Whether its server was restarted, with an old memory perhaps."""

    @property
    def votes(self) -> bool:
        """Whether it has its mark."""
        return bool(self.set)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever asked of it, as far as it knows."""
        return not (self.set or self.away or self.highest)

    @property
    def waited(self) -> float:
        """Seconds for which it is known not to vote."""
        return (self.now_us - int(self.back)) / 1e6 if self.back else 0.0


def member_of(reply: Sequence[Any]) -> Member:
    """Read the answer of the script STATE."""
    now, *rest = [(part or b"").decode() for part in reply]
    name, run, of, size, floor, highest, longest, back, away = rest
    numbers = (int(size or 0), int(floor or 0), int(highest or 0), int(longest or 0) / 1000)
    return Member(int(now), name, run, of, *numbers, back, bool(away))


def set_of(members: Iterable[Member]) -> str:
    """The name of a new set: every client that founds it with these nodes gives it the same one."""
    return hashlib.sha256(" ".join(sorted(member.id for member in members)).encode()).hexdigest()[:16]


def known_set(names: Sequence[str], members: Sequence[Member | None]) -> str:
    """The set that these nodes vote in, empty if none of them votes; refuse nodes that do not belong together."""
    seen = [(name, member) for name, member in zip(names, members, strict=True) if member is not None]
    for index, (name, member) in enumerate(seen):
        for other_name, other in seen[:index]:
            if (member.id and member.id == other.id) or (member.run and member.run == other.run):
                raise Misuse(f"{other_name} and {name} are one server, and two votes of one server are one")
    sets = {member.set for _, member in seen if member.votes}
    sizes = {member.size for _, member in seen if member.votes}
    if len(sets) > 1:
        raise Misuse(f"these nodes belong to {len(sets)} different sets; name all nodes of one, in every client")
    if sizes - {len(names)}:
        raise Misuse(
            f"these nodes belong to a set of {sizes.pop()}, and {len(names)} were named; name all of them, in every "
            "client, or two clients could have two majorities"
        )
    return sets.pop() if sets else ""


def stays_out_for(members: Iterable[Member]) -> float:
    """Seconds for which a node without a memory does not vote, by what the others were asked for.

    The twentieth is for clocks that run at different rates, the second for a round of questions.
    """
    longest = max((member.longest for member in members), default=0.0)
    return max(longest, LONGEST_ATTEMPT) * 1.05 + 1.0


def was_never_let_in(member: Member, seen: Sequence[Member | None], name: str) -> bool:
    """Whether the set *name* was founded with this very node, which did not hear of it.

    The set is named after all its nodes as they were, and a node that forgets forgets who it is.
    """
    there = [each for each in seen if each is not None]
    return len(there) == len(seen) and not member.away and set_of(there) == name


def may_return(member: Member, others: Sequence[Member], quorum: int) -> bool:
    """Whether a node without a memory may vote again, if it takes over what *others*, which vote, say now."""
    return len(others) >= quorum and member.waited > stays_out_for(others)


def floor_of(members: Iterable[Member]) -> int:
    """The fence above which all later ones have to be."""
    return max((max(member.highest, member.floor) for member in members), default=0)


def standing(member: Member, others: Sequence[Member], quorum: int) -> str:
    """For people: whether a node votes, and what it waits for."""
    if member.votes:
        return "votes"
    if member.is_new:
        return "is new, or lost its memory a moment ago: it does not vote yet"
    if len(others) < quorum:
        return "lost its memory, and so did too many others: reseed them with a fence that is above all in use"
    left = max(0.0, stays_out_for(others) - member.waited)
    return f"lost its memory and does not vote: it is let in again after {left:.0f} s, with the fences of the others"
