"""Waiting at etcd: whoever waits watches what can make it its turn, and keeps its own ticket meanwhile."""

from __future__ import annotations

from dibs.runtime import Runtime
from dibs.stores.etcd import requests
from dibs.stores.etcd.keeper import LeaseKeeper
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.leases import EtcdLease
from dibs.stores.etcd.port.gateway import Etcd
from dibs.stores.etcd.queue import Ahead
from dibs.stores.store import Ask, Claim, Grant

WAITER_TTL = 2.5
"""Seconds for which a waiter keeps its ticket without showing that it is alive: it keeps those behind it waiting."""

KEEP_AT = 1 / 3
"""The part of its length after which a lease of etcd is renewed for whoever waits under it."""


class EtcdWaiters:
    """Those of one client who wait."""

    def __init__(self, etcd: Etcd, naming: EtcdNaming, keeper: LeaseKeeper, runtime: Runtime) -> None:
        self._etcd, self._naming, self._keeper, self._runtime = etcd, naming, keeper, runtime
        self._ahead: dict[str, Ahead] = {}  # by the tokens of those who wait
        self._called: set[str] = set()  # the tokens of those whose watch has told them something

    def behind(self, token: str, ahead: Ahead) -> None:
        """*token* stands in the queue, behind *ahead*."""
        self._ahead[token] = ahead

    def was_called(self, token: str) -> bool:
        """Whether the watch of *token* has told it to ask again; only the next ask hears of it."""
        called = token in self._called
        self._called.discard(token)
        return called

    def served(self, claim: Claim, lease: EtcdLease) -> Grant:
        """It holds the lock, under *lease*, and waits no more."""
        self.forget(claim.token)
        self._keeper.hold(claim, lease)
        return Grant(claim.fence, claim.ttl)

    def forget(self, token: str) -> None:
        """It does not wait any more."""
        self._ahead.pop(token, None)
        self._called.discard(token)

    async def wait(self, ask: Ask, until: float) -> None:
        """Watch until it is worth asking again, or until *until*."""
        ticket = self._keeper.tickets.get(ask.token)
        ahead = self._ahead.pop(ask.token, None) or await self._who_is_ahead(ask, until)
        if ticket is None or ahead is None:
            return
        left = until - self._runtime.now()
        with await self._etcd.watch(ahead.key, ahead.revision, left, end=ahead.end, puts=ahead.puts) as watch:
            while (left := until - self._runtime.now()) > 0:
                lease = await self._keeper.lease_for(min(ask.ttl, WAITER_TTL), until)
                if lease.id != ticket.lease:
                    return  # ours has ended, and our ticket with it
                self._keeper.tickets.put(ticket._replace(until=self._runtime.now() + lease.ttl))
                gone = await watch.told(min(left, lease.seconds * KEEP_AT))
                if gone is None:
                    continue
                ahead = ahead.without(gone)
                if ticket.key not in gone and ahead.is_over:
                    self._called.add(ask.token)
                    return
                if not ahead.end or not gone or ticket.key in gone:
                    return

    def forked(self) -> None:
        """They are the parent's."""
        self._ahead, self._called = {}, set()

    async def _who_is_ahead(self, ask: Ask, until: float) -> Ahead | None:
        """What is just before us now; None if we are the first, or not in the queue, or had better ask again."""
        if ask.share is not None:
            return None  # to ask tells more of a queue in which several hold the name
        keys = self._naming.keys(ask.name)
        [own] = await self._keeper.read([requests.get(self._naming.key(ask.name, ask.token))], until)
        if not own:
            return None
        before = requests.before(keys, own[0].created)
        answer = await self._etcd.call("kv/range", before, until - self._runtime.now())
        found = requests.pairs(answer)
        return Ahead(found[0].key, requests.revision(answer) + 1) if found else None
