"""The queue of one name as etcd had it at one moment: its holders, its waiters, and what a waiter has to watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dibs.share import Share
from dibs.stores import queue as rule
from dibs.stores.etcd.keys import EtcdKeys, EtcdNaming
from dibs.stores.etcd.requests import Pair


class Ahead(NamedTuple):
    """What a waiter watches: the end, or the turn, of a client before it."""

    key: str
    revision: int
    """Whatever happens from this revision on wakes the waiter."""
    end: str = ""
    """It watches all keys from *key* to before this; empty: that one alone."""
    puts: bool = False
    """Whether it is woken as well when the client ahead has its turn."""
    queue: tuple[tuple[str, Share | None], ...] = ()
    """The keys and shares of all ahead and, last, of the waiter; empty for a waiter that wants all of the name."""

    def without(self, gone: set[str]) -> Ahead:
        """What is left once the keys *gone* are deleted."""
        return self._replace(queue=tuple(member for member in self.queue if member[0] not in gone))

    @property
    def is_over(self) -> bool:
        """Whether it is the waiter's turn, as far as it knows. That is certain: nobody is ever put before another."""
        return rule.inside([share for _, share in self.queue]) == len(self.queue)


class EtcdQueue(NamedTuple):
    """The keys of one name, in the order of their arrival."""

    pairs: Sequence[Pair]
    shares: Sequence[Share | None]

    @property
    def holders(self) -> Sequence[Pair]:
        """The keys that hold the name."""
        return self.pairs[: rule.inside(self.shares)]

    @property
    def waiters(self) -> Sequence[Pair]:
        """The keys that wait for it."""
        return self.pairs[rule.inside(self.shares) :]

    @property
    def slots(self) -> int | None:
        """The slots of the semaphore that the holders share: see `dibs.stores.queue.slots`."""
        return rule.slots(self.shares)

    def fits(self, share: Share) -> bool:
        """Whether a client that came now for *share* would have its turn at once."""
        return rule.fits(self.shares, share)

    def find(self, key: str) -> Pair | None:
        """The pair with *key*; None if it is not in the queue."""
        return next((pair for pair in self.pairs if pair.key == key), None)

    def ahead_of(self, own: Pair, keys: EtcdKeys, revision: int) -> Ahead:
        """What the waiter *own* has to watch if this was the queue at *revision*."""
        position = self.pairs.index(own)
        call = rule.call(self.shares, position)
        seen = tuple((pair.key, share) for pair, share in zip(self.pairs, self.shares[: position + 1], strict=False))
        if call.position is None:
            return Ahead(keys.first, revision + 1, end=keys.end, queue=seen)
        return Ahead(self.pairs[call.position].key, revision + 1, puts=call.granted, queue=seen)


def etcd_queue(pairs: Sequence[Pair], naming: EtcdNaming) -> EtcdQueue:
    """The queue that *pairs* are, read in the order in which they were created."""
    return EtcdQueue(pairs, [naming.share(pair.key) for pair in pairs])
