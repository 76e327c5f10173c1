"""Whose turn it is in a line, where a store keeps one of all who hold a name or wait for it, by their arrival.

Strictly the first come first: nobody goes in before one who came earlier, not even where it would fit beside those who
are in. So those who hold the name are always the front of the line, and everybody can tell from the list alone how long
that front is. A line is a list of parts, None for who wants all of the name (see `dibs.part`).

Nobody ever gets a place before another. So whoever has its turn keeps it until it goes, whatever becomes of the others:
it may look now and write later, if nobody can have come before it whom it did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.part import UNBOUNDED, Part

Line = Sequence[Part | None]


class Call(NamedTuple):
    """What tells a waiter to look again. Nobody is told who would then wait on, but for one at each grant."""

    place: int | None
    """Whose end it is; None: the end of anybody ahead, all of whom hold the name."""
    granted: bool
    """Whether it is also that one's turn, which it has to announce when it learns of it: there may be room for two."""


def inside(line: Line) -> int:
    """How many have their turn: so many from the front hold the name, and the others wait."""
    if not line:
        return 0
    first, used = line[0], 0
    if first is None:
        return 1
    for place, part in enumerate(line):
        used += part.weight if part is not None else 0
        if place and (part is None or part.slots != first.slots or used > first.slots):
            return place
    return len(line)


def fits(line: Line, part: Part | None) -> bool:
    """Whether it would be the turn of one who came now, last, for *part*."""
    return inside([*line, part]) > len(line)


def slots(line: Line) -> int | None:
    """The slots of which those who hold the name have some; None if nobody does, or one has all of it.

    Whoever asks for a part of another number, at any place in line, is refused: see `dibs.part.other_slots`.
    """
    return line[0].slots if line and line[0] is not None else None


def call(line: Line, place: int) -> Call:
    """What the waiter at *place*, which is not refused, has to listen for from the moment at which this was the line.

    Who wants all of the name needs all others ahead to go, and watches the last of them. Who wants to share it goes in
    together with all who share and stand before it; what keeps them all out is the last of another kind. Of a
    semaphore's waiters only the first can go in when somebody leaves, whoever it is; the next then looks, and so on.
    """
    own, ahead = line[place], place - 1
    if own is None:
        return Call(ahead, granted=False)
    if own.slots == UNBOUNDED:
        ahead = max(other for other in range(place) if line[other] != own)
    elif place == inside(line) and line[0] is not None:
        return Call(None, granted=False)
    return Call(ahead, granted=line[ahead] is not None)
