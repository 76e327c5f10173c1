"""One ask as it goes to etcd, and the answers to it."""

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
"""What etcd said, and the term of the leader under which it did."""


class EtcdAttempt(NamedTuple):
    """What there is to be sent for an ask."""

    ask: Ask
    keys: EtcdKeys
    key: str
    """Its own."""
    mark: str
    """What refuses it if it comes too late."""
    value: str
    holding: EtcdLease
    """What it is under when it holds the lock."""
    waiting: EtcdLease
    """What it is under while it waits."""
    called: bool
    """Whether its watch has told it to ask again."""
    known: EtcdTicket | None
    """What this client asked for with the same token before."""

    def claim(self, created: int) -> Claim:
        """What it has, or waits for, with the key that was created at that revision."""
        return Claim(self.ask.name, self.ask.token, created, self.holding.ttl)

    def was_granted(self, pair: Pair) -> bool:
        """Whether its key, as it was read, is a grant that it was told of before."""
        return self.known is not None and self.known.fence == pair.created and pair.lease == self.holding.id

    def busy(self, holder: list[Pair], naming: EtcdNaming) -> Busy:
        """The answer that says who has it."""
        if not holder:  # it was let go in that very moment
            return Busy(None, 0.0)
        [has] = holder
        who = values.holder(self.ask.name, has.created, has, None, naming.share(has.key))
        return Busy(who, LOOK_AGAIN, stuck="" if has.lease else values.ENDLESS)
