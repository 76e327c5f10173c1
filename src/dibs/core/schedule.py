"""What the keeper has to do and when: a heap, so that any number of leases costs one sleeper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from dibs.core.lease import LeaseRef

TOGETHER = 0.2
"""Seconds: what is due within so much of each other goes out in one request."""

LARGEST_BATCH = 1000
"""Leases in one request: it stays a short step for the store."""


class Return:
    """A token that has to be given back, because nobody knows whether the store heard of it."""

    __slots__ = ("done", "failures", "name", "token", "until")

    def __init__(self, name: str, token: str, until: float) -> None:
        self.name, self.token, self.until = name, token, until
        self.failures = 0
        self.done = False


Entry: TypeAlias = "LeaseRef | Return"


class KeeperSchedule:
    """Entries by the moment they are due. Entries that need nothing any more are dropped as they are met."""

    __slots__ = ("_count", "_heap", "_live", "gone")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._count = 0
        self._live = 0
        self.gone: list[LeaseRef] = []
        """Leases that nobody refers to any more, given up or not."""

    def add(self, due_at: float, entry: Entry) -> None:
        """Put *entry* in; it is served once at about *due_at*."""
        self._count += 1
        self._live += 1
        heappush(self._heap, (due_at, self._count, entry))

    def put_back(self, batch: Sequence[Entry], now: float) -> None:
        """Those of *batch* that have not come back by themselves are due again: nobody has served them."""
        here = set(map(id, self))
        for entry in batch:
            if id(entry) not in here and wanted(entry):
                self.add(now, entry)

    def drop(self) -> None:
        """One entry needs nothing any more. When most are such, they are cleared, so that none pile up."""
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [item for item in self._heap if wanted(item[2])]
            heapify(self._heap)
            self._live = len(self._heap)

    def next_at(self) -> float:
        """The moment at which something is due; infinity if nothing is."""
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> list[Entry]:
        """Take out what is due by *now*, and what is due soon enough to go with it."""
        if self.next_at() > now:
            return []
        batch: list[Entry] = []
        while self._heap and self._heap[0][0] <= now + TOGETHER and len(batch) < LARGEST_BATCH:
            entry = heappop(self._heap)[2]
            if wanted(entry):
                self._live -= 1
                batch.append(entry)
            elif not isinstance(entry, Return) and entry() is None:
                self.gone.append(entry)
        return batch

    def __iter__(self) -> Iterator[Entry]:
        """All entries, in no order; some may need nothing any more."""
        return iter([entry for _, _, entry in self._heap])


def wanted(entry: Entry) -> bool:
    """Whether *entry* still needs something: a lease that nobody gave up, a return that is not done.

    It does not look at the clock. That could find a loss, which tells whoever waits for it, and the keeper calls this
    with its mutex held.
    """
    if isinstance(entry, Return):
        return not entry.done
    lease = entry()
    return lease is not None and lease.lost._is_open
