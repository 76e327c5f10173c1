"""One ask on its way to a grant: what is sent to etcd, and what the answers mean. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from dibs.stores.etcd import values
from dibs.stores.etcd.keys import EtcdKeys, EtcdNaming
from dibs.stores.etcd.leases import EtcdLease
from dibs.stores.etcd.requests import Pair
from dibs.stores.etcd.tickets import EtcdTicket
from dibs.stores.store import Ask, Busy, Claim, Grant

LOOK_AGAIN = 30.0
"""Seconds after which a waiter asks again although its watch says nothing; the core does so sooner."""

EtcdAnswer = tuple[Grant | Busy, int]
"""The answer to an ask, and the term of the leader that gave it."""


class EtcdAttempt(NamedTuple):
    """One ask, with all that its requests need."""

    ask: Ask
    keys: EtcdKeys
    key: str
    """The key of this attempt."""
    mark: str
    """The key that makes etcd refuse the ask if it comes too late."""
    value: str
    holding: EtcdLease
    """The lease for its key when it holds the lock."""
    waiting: EtcdLease
    """The lease for its key while it waits."""
    called: bool
    """Whether its watch has told it to ask again."""
    known: EtcdTicket | None
    """The ticket of an earlier ask with the same token, if there was one."""

    def claim(self, created: int) -> Claim:
        """The claim of its key, which was created at the revision *created*."""
        return Claim(self.ask.name, self.ask.token, created, self.holding.ttl)

    def was_granted(self, pair: Pair) -> bool:
        """Whether *pair*, its key as it was read, is a grant that was answered before."""
        return self.known is not None and self.known.fence == pair.created and pair.lease == self.holding.id

    def busy(self, holder: list[Pair], naming: EtcdNaming) -> Busy:
        """The answer for an ask that has to wait: *holder* is the key that was created first, if there is one."""
        if not holder:  # released at that very moment
            return Busy(None, 0.0)
        [has] = holder
        who = values.holder(self.ask.name, has.created, has, None, naming.share(has.key))
        return Busy(who, LOOK_AGAIN, stuck="" if has.lease else values.ENDLESS)
