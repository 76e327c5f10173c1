"""Whose turn it is, where a store keeps one queue of a name's holders and waiters, in the order of their arrival.

Strictly first come, first served: nobody goes in before an earlier arrival, not even where its share would fit beside
those of the holders. So the holders are always the front of the queue, and every client can tell from the list alone
how long that front is. A queue is a list of shares, with None for a waiter that wants all of the name (see
`dibs.share`).

Nobody is ever put before another. So a client that has its turn keeps it until it leaves, whatever becomes of the
others: it may look now and write later, if no client can have come before it that it did not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.share import UNBOUNDED, Share

Queue = Sequence[Share | None]


class WakeUp(NamedTuple):
    """What tells a waiter to look again. A waiter that could only wait on is not woken, but for one at each grant."""

    position: int | None
    """The client whose end wakes it; None: the end of any client ahead, all of which hold the name."""
    granted: bool
    """Whether that client's turn wakes it too, which that client announces: there may be room for two."""


def inside(queue: Queue) -> int:
    """How many clients at the front have their turn, and so hold the name; the others wait."""
    if not queue:
        return 0
    first, used = queue[0], 0
    if first is None:
        return 1
    for position, share in enumerate(queue):
        used += share.weight if share is not None else 0
        if position and (share is None or share.slots != first.slots or used > first.slots):
            return position
    return len(queue)


def fits(queue: Queue, share: Share | None) -> bool:
    """Whether a client that came now, last, for *share* would have its turn at once."""
    return inside([*queue, share]) > len(queue)


def slots(queue: Queue) -> int | None:
    """The slots of the semaphore that the holders share; None if there is no holder, or one that has all of the name.

    An ask for a share with another number of slots is refused, whatever its position: see `dibs.share.other_slots`.
    """
    return queue[0].slots if queue and queue[0] is not None else None


def call(queue: Queue, position: int) -> WakeUp:
    """What the waiter at *position* has to listen for, from the moment at which this was the queue.

    A waiter for all of the name needs all others ahead to go, and watches the last of them. A waiter for a shared lock
    goes in together with all sharers ahead of it; what keeps them all out is the last waiter or holder of another
    kind. Of a semaphore's waiters only the first can go in when some holder leaves; then the next one looks, and so
    on. It is not for a waiter that is refused, since it names another number of slots.
    """
    own, ahead = queue[position], position - 1
    if own is None:
        return WakeUp(ahead, granted=False)
    if own.slots == UNBOUNDED:
        ahead = max(other for other in range(position) if queue[other] != own)
    elif position == inside(queue) and queue[0] is not None:
        return WakeUp(None, granted=False)
    return WakeUp(ahead, granted=queue[ahead] is not None)
