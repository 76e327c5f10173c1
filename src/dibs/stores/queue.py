"""Whose turn it is in a line, where a store keeps one of all who hold a name or wait for it, by their arrival.

Strictly the first come first: nobody goes in before one who came earlier, not even where it would fit beside those who
are in. So those who hold the name are always the front of the line, and everybody can tell from the list alone how long
that front is. A line is a list of shares, with None for a waiter that wants all of the name (see `dibs.share`).

Nobody ever gets a place before another. So whoever has its turn keeps it until it goes, whatever becomes of the others:
it may look now and write later, if nobody can have come before it whom it did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.share import UNBOUNDED, Share

Queue = Sequence[Share | None]


class WakeUp(NamedTuple):
    """What tells a waiter to look again. Nobody is told who would then wait on, but for one at each grant."""

    place: int | None
    """Whose end it is; None: the end of anybody ahead, all of whom hold the name."""
    granted: bool
    """Whether it is also that one's turn, which it has to announce when it learns of it: there may be room for two."""


def inside(line: Queue) -> int:
    """How many have their turn: so many from the front hold the name, and the others wait."""
    if not line:
        return 0
    first, used = line[0], 0
    if first is None:
        return 1
    for place, share in enumerate(line):
        used += share.weight if share is not None else 0
        if place and (share is None or share.slots != first.slots or used > first.slots):
            return place
    return len(line)


def fits(line: Queue, share: Share | None) -> bool:
    """Whether it would be the turn of one who came now, last, for *share*."""
    return inside([*line, share]) > len(line)


def slots(line: Queue) -> int | None:
    """The slots of which those who hold the name have some; None if nobody does, or one has all of it.

    An ask for a share with another number of slots, at any place in line, is refused: see `dibs.share.other_slots`.
    """
    return line[0].slots if line and line[0] is not None else None


def call(line: Queue, place: int) -> WakeUp:
    """What the waiter at *place*, which is not refused, has to listen for from the moment at which this was the line.

    Who wants all of the name needs all others ahead to go, and watches the last of them. Who wants to share it goes in
    together with all who share and stand before it; what keeps them all out is the last of another kind. Of a
    semaphore's waiters only the first can go in when somebody leaves, whoever it is; the next then looks, and so on.
    """
    own, ahead = line[place], place - 1
    if own is None:
        return WakeUp(ahead, granted=False)
    if own.slots == UNBOUNDED:
        ahead = max(other for other in range(place) if line[other] != own)
    elif place == inside(line) and line[0] is not None:
        return WakeUp(None, granted=False)
    return WakeUp(ahead, granted=line[ahead] is not None)
