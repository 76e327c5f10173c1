"""Whether an attempt has won, by the answers so far: the arithmetic of Redlock with fences that a quorum confirms.

It knows no node, no clock and no request: only numbers, one for each node. What the store does with them, and what
the model checker of the tests explores exhaustively, is this code.

The protocol. Each node keeps, for each lock, the token that holds it and a fence that never falls. A grant raises the
fence and answers with it. A node *confirms* a fence if in one atomic step it was seen to hold our token with exactly
that fence. The attempt has won when a quorum confirms one and the same fence: the highest that any of its nodes has
answered. A node whose fence is lower is asked to rise to it, which it does only while it holds our token; if it
answers with a higher one, that is the fence to be confirmed from now on, and the nodes that confirm are counted anew.

Why it is right, without any clock: the confirming quorums of two attempts share a node. There, one held the lock with
its fence before the other was granted, and that grant raised the fence above it. So no two attempts have one fence,
and an attempt that began after another had won has the higher one. It takes attempts that never share a token, and
nodes that do not forget: see `members`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

UNHEARD = 0
"""A node that has not answered. A positive number is the highest fence with which it was seen to hold our token."""

REFUSED = -1
"""A node that does not hold our token: another client has the lock there, or it ended."""

FAILED = -2
"""A node that cannot be asked, or does not vote."""


class Verdict(Enum):
    """The state of an attempt after an answer."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


def quorum_of(nodes: int) -> int:
    """How many of *nodes* are more than half: any two quorums share a node."""
    return nodes // 2 + 1


def heard(known: int, fence: int) -> int:
    """What a node counts as after it answered with *fence*; answers that come out of order change nothing."""
    return max(known, fence)


def votes(said: Sequence[int]) -> int:
    """How many nodes hold our token."""
    return len(said) - said.count(UNHEARD) - said.count(REFUSED) - said.count(FAILED)


def fence_of(said: Sequence[int]) -> int:
    """The fence to be confirmed: the highest that any node has answered."""
    return max(said)


def verdict(said: Sequence[int], quorum: int) -> Verdict:
    """Whether the attempt has won, is lost, or is still open."""
    highest = max(said)
    if highest > UNHEARD and said.count(highest) >= quorum:  # each of these was seen with exactly this fence
        return Verdict.WON
    if len(said) - said.count(REFUSED) - said.count(FAILED) < quorum:
        return Verdict.LOST
    return Verdict.OPEN


def to_raise(said: Sequence[int], quorum: int) -> list[int]:
    """The nodes to be asked to rise to the fence: they hold our token with a lower one."""
    if votes(said) < quorum:
        return []
    highest = max(said)
    return [node for node, each in enumerate(said) if UNHEARD < each < highest]


def free_after(lefts: Sequence[float], missing: int) -> float:
    """Seconds until *missing* votes may be free, by the ttls left to their holders."""
    return sorted(lefts)[missing - 1] if 0 < missing <= len(lefts) else 0.0
