"""The line of one name as etcd had it at one moment: who holds it, who waits, and what a waiter has to watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.share import Share
from dibs.stores import queue as rule
from dibs.stores.etcd.keys import Keys, Naming
from dibs.stores.etcd.requests import Pair


class Ahead(NamedTuple):
    """Who is before a waiter, and whose end, or turn, it watches."""

    key: str
    revision: int
    """From here on what it watches is still to come."""
    end: str = ""
    """It watches all keys from *key* to before this; empty: that one alone."""
    puts: bool = False
    """Whether it is also told that the one ahead has its turn."""
    line: tuple[tuple[str, Share | None], ...] = ()
    """The keys and parts of all ahead and, last, of the waiter; empty for one who wants all of the name."""

    def without(self, gone: set[str]) -> Ahead:
        """The same, when those are gone."""
        return self._replace(line=tuple(member for member in self.line if member[0] not in gone))

    @property
    def is_over(self) -> bool:
        """Whether it is the waiter's turn, by what it knows. Then it is so: nobody gets a place before another."""
        return rule.inside([share for _, share in self.line]) == len(self.line)


class Standing(NamedTuple):
    """Who is there, in the order of their arrival."""

    pairs: Sequence[Pair]
    shares: Sequence[Share | None]

    @property
    def inside(self) -> Sequence[Pair]:
        """Those who hold it."""
        return self.pairs[: rule.inside(self.shares)]

    @property
    def behind(self) -> Sequence[Pair]:
        """Those who wait."""
        return self.pairs[rule.inside(self.shares) :]

    @property
    def slots(self) -> int | None:
        """The slots of which those who hold it have some."""
        return rule.slots(self.shares)

    def fits(self, share: Share) -> bool:
        """Whether it would be the turn of one who came now for *part*."""
        return rule.fits(self.shares, share)

    def find(self, key: str) -> Pair | None:
        """Who has *key*."""
        return next((pair for pair in self.pairs if pair.key == key), None)

    def ahead_of(self, own: Pair, keys: Keys, revision: int) -> Ahead:
        """What the waiter *own* has to watch if this was the line at *revision*."""
        place = self.pairs.index(own)
        call = rule.call(self.shares, place)
        seen = tuple((pair.key, share) for pair, share in zip(self.pairs, self.shares[: place + 1], strict=False))
        if call.place is None:
            return Ahead(keys.first, revision + 1, end=keys.end, line=seen)
        return Ahead(self.pairs[call.place].key, revision + 1, puts=call.granted, line=seen)


def standing(pairs: Sequence[Pair], naming: Naming) -> Standing:
    """The line that was read."""
    return Standing(pairs, [naming.share(pair.key) for pair in pairs])
