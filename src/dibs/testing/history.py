"""What locks did, as windows of time, and whether a correct lock can have done it.

Each grant becomes one `Hold`: when it was asked for and granted, and between which moments it ended. All moments are
on one clock. The fence fixes the order of the grants, so that what is a hard search for locks without one is a walk
in order (each check is O(n log n)). Follows the rules of Jepsen's mutex tests: what is not known to have ended may
have ended any time later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dibs.share import Share

FOREVER = math.inf


@dataclass(slots=True)
class Hold:
    """One grant, as its holder saw it."""

    fence: int
    asked_at: float
    """When acquire was called."""
    granted_at: float
    """When acquire returned."""
    over_from: float = FOREVER
    """The earliest moment at which it can have ended."""
    over_by: float = FOREVER
    """The latest moment at which it can have ended."""
    valid_until: float = FOREVER
    """Up to when its holder may have relied on it: the deadline of the last confirmed renewal."""
    stopped_at: float = FOREVER
    """When its holder stopped relying on it: gave it back, was told of the loss, or died."""
    still_until: float = -FOREVER
    """Up to when its process last stood still: nobody can be told meanwhile."""
    broken_at: float = FOREVER
    """When somebody may first have broken it on purpose."""
    who: str = ""
    share: Share | None = None
    """What it was of the name; None: all of it."""

    def given_back(self, called_at: float, returned_at: float) -> None:
        """Release was called, and the store said that the lock was held until then."""
        self._ends(called_at, called_at, returned_at)

    def found_lost(self, told_at: float, returned_at: float) -> None:
        """The holder was told of the loss at *told_at*; the store may have ended it any time before *returned_at*."""
        self._ends(told_at, min(self.valid_until, told_at), returned_at)

    def left(self, at: float) -> None:
        """The holder is gone or was told nothing certain: the grant may live on at the store, up to its ttl."""
        self._ends(at, min(self.valid_until, at), FOREVER)

    def broken(self, at: float) -> None:
        """Somebody may have broken it on purpose, at the earliest *at*: its holder learns of that later."""
        self.broken_at = at
        self.over_from = min(self.over_from, at)

    def _ends(self, stopped_at: float, over_from: float, over_by: float) -> None:
        self.stopped_at = stopped_at
        self.over_from, self.over_by = over_from, max(over_by, over_from)


class Violation(NamedTuple):
    """Something that no correct lock can do."""

    rule: str
    first: Hold
    second: Hold | None = None

    def __str__(self) -> str:
        return f"{self.rule}:\n  {self.first}" + (f"\n  {self.second}" if self.second else "")


class Write(NamedTuple):
    """One write that reached a guarded resource, in the order of arrival."""

    fence: int
    accepted: bool


def violations(holds: Sequence[Hold], *, exclusive: bool = True) -> list[Violation]:
    """All checks on the holds of one name. Not *exclusive*: the store forgot, so only the fences must be right."""
    found = fences_out_of_order(holds)
    if exclusive:
        found += [*overlaps(holds), *impossible(holds), *told_late(holds)]
    return found


def violations_of_shares(holds: Sequence[Hold], *, kept: bool = True) -> list[Violation]:
    """All checks on the holds of one name that several may hold. Not *kept*: the store forgot what it gave out."""
    found = fences_out_of_order(holds)
    if kept:
        found += [*too_many(holds), *past_deadline(holds)]
    return found


def fences_out_of_order(holds: Iterable[Hold]) -> list[Violation]:
    """No two grants share a fence, and whoever asks after another was granted gets a higher one."""
    holds, found = list(holds), []
    seen: dict[int, Hold] = {}
    for hold in holds:
        if hold.fence in seen:
            found.append(Violation("two grants have one fence", seen[hold.fence], hold))
        seen[hold.fence] = hold
    returned = sorted(holds, key=lambda hold: hold.granted_at)
    highest, next_index = None, 0
    for hold in sorted(holds, key=lambda hold: hold.asked_at):
        while next_index < len(returned) and returned[next_index].granted_at < hold.asked_at:
            if highest is None or returned[next_index].fence > highest.fence:
                highest = returned[next_index]
            next_index += 1
        if highest is not None and highest is not hold and hold.fence <= highest.fence:
            found.append(Violation("a grant that was asked for later has a fence that is not higher", highest, hold))
    return found


def overlaps(holds: Iterable[Hold]) -> list[Violation]:
    """No two holders have the lock at once: from granted to the earliest possible end, so that each hit is certain."""
    found = []
    last: Hold | None = None
    for hold in sorted((h for h in holds if h.granted_at < h.over_from), key=lambda h: (h.granted_at, h.over_from)):
        if last is not None and hold.granted_at < last.over_from:
            found.append(Violation("two held the lock at once", last, hold))
        if last is None or hold.over_from > last.over_from:
            last = hold
    return found


def too_many(holds: Iterable[Hold]) -> list[Violation]:
    """Nobody holds a name beside one who has all of it, and parts never weigh more than there are slots.

    From granted to when its holder stopped relying on it; if that stood still meanwhile, or was broken on purpose, to
    the earliest possible end.
    """
    found = []
    inside: list[tuple[float, Hold]] = []
    for hold in sorted(holds, key=lambda hold: hold.granted_at):
        inside = [(end, other) for end, other in inside if end > hold.granted_at]
        end = _relied_on_until(hold)
        beside = [other for _, other in inside]
        if end > hold.granted_at:
            if beside and (hold.share is None or any(other.share is None for other in beside)):
                found.append(Violation("one held all of it, and was not alone", beside[0], hold))
            elif hold.share is not None and _weight([*beside, hold]) > hold.share.slots:
                found.append(Violation(f"{len(beside) + 1} held more than {hold.share.slots} slots", beside[0], hold))
            inside.append((end, hold))
    return found


def _relied_on_until(hold: Hold) -> float:
    excused = hold.broken_at < FOREVER or hold.still_until > hold.granted_at
    return hold.over_from if excused else max(hold.over_from, hold.stopped_at)


def _weight(holds: Iterable[Hold]) -> int:
    return sum(hold.share.weight for hold in holds if hold.share is not None)


def impossible(holds: Iterable[Hold]) -> list[Violation]:
    """There are moments, one for each grant and each end, within the windows and in the order of the fences.

    The earliest moment that fits is always the best choice, for it leaves most room to those that follow.
    """
    moment = -FOREVER
    for hold in sorted(holds, key=lambda hold: hold.fence):
        granted = max(hold.asked_at, moment)
        if granted > hold.granted_at:
            return [Violation("it cannot have been granted while acquire ran", hold)]
        moment = max(hold.over_from, granted)
        if moment > hold.over_by:
            return [Violation("it cannot have ended when it is said to", hold)]
    return []


def past_deadline(holds: Iterable[Hold], grace: float = 0.001) -> list[Violation]:
    """A holder is told of a loss by its deadline, unless its process stood still."""
    late = (hold for hold in holds if hold.stopped_at > max(hold.valid_until, hold.still_until) + grace)
    return [Violation("the holder was told later than its deadline", hold) for hold in late]


def told_late(holds: Iterable[Hold], grace: float = 0.001) -> list[Violation]:
    """A holder is told of a loss by its deadline, and before the next is granted, unless its process stood still."""
    ordered = sorted(holds, key=lambda hold: hold.fence)
    found = past_deadline(ordered, grace)
    for hold, after in pairwise(ordered):
        excused = hold.broken_at < FOREVER or hold.still_until >= after.granted_at
        if after.granted_at < hold.stopped_at and not excused:
            found.append(Violation("the next was granted before the holder was told", hold, after))
    return found


def writes_out_of_order(writes: Iterable[Write]) -> list[str]:
    """A guarded resource accepts writes in the order of their fences, and refuses only what is older."""
    found, highest = [], 0
    for write in writes:
        if write.accepted != (write.fence >= highest):
            found.append(f"fence {write.fence} was {'accepted' if write.accepted else 'refused'} after {highest}")
        highest = max(highest, write.fence if write.accepted else 0)
    return found
