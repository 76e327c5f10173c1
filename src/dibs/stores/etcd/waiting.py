"""How a waiter waits: it watches the key whose end lets it in, and keeps its own ticket alive meanwhile."""

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
"""The ttl of the lease of a waiter, in seconds: for that time a dead waiter holds up those behind it."""

KEEP_AT = 1 / 3
"""The part of its length after which the lease of a waiter is renewed."""


class EtcdWaiters:
    """The waiters of one client."""

    def __init__(self, etcd: Etcd, naming: EtcdNaming, keeper: LeaseKeeper, runtime: Runtime) -> None:
        self._etcd, self._naming, self._keeper, self._runtime = etcd, naming, keeper, runtime
        self._ahead: dict[str, Ahead] = {}  # by the tokens of waiters
        self._called: set[str] = set()  # the tokens of waiters whose watch has told them something

    def behind(self, token: str, ahead: Ahead) -> None:
        """Note that *token* waits for *ahead*."""
        self._ahead[token] = ahead

    def was_called(self, token: str) -> bool:
        """Whether the watch of *token* has told it to ask again; that is told once."""
        called = token in self._called
        self._called.discard(token)
        return called

    def served(self, claim: Claim, lease: EtcdLease) -> Grant:
        """The grant of *claim*, which now holds under *lease* and no longer waits."""
        self.forget(claim.token)
        self._keeper.hold(claim, lease)
        return Grant(claim.fence, claim.ttl)

    def forget(self, token: str) -> None:
        """Note that *token* no longer waits."""
        self._ahead.pop(token, None)
        self._called.discard(token)

    async def wait(self, ask: Ask, until: float) -> None:
        """Watch until it is worth asking again, or until the moment *until*."""
        ticket = self._keeper.tickets.get(ask.token)
        ahead = self._ahead.pop(ask.token, None) or await self._who_is_ahead(ask, until)
        if ticket is None or ahead is None:
            return
        left = until - self._runtime.now()
        with await self._etcd.watch(ahead.key, ahead.revision, left, end=ahead.end, puts=ahead.puts) as watch:
            while (left := until - self._runtime.now()) > 0:
                lease = await self._keeper.lease_for(min(ask.ttl, WAITER_TTL), until)
                if lease.id != ticket.lease:
                    return  # our lease has ended, and our ticket with it
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
        """Forget all waiters: they are the parent's."""
        self._ahead, self._called = {}, set()

    async def _who_is_ahead(self, ask: Ask, until: float) -> Ahead | None:
        """The key just ahead; None if there is none, if we have no ticket, or if asking again is better."""
        if ask.share is not None:
            return None  # to ask tells more, where several clients hold the name
        keys = self._naming.keys(ask.name)
        [own] = await self._keeper.read([requests.get(self._naming.key(ask.name, ask.token))], until)
        if not own:
            return None
        before = requests.before(keys, own[0].created)
        answer = await self._etcd.call("kv/range", before, until - self._runtime.now())
        found = requests.pairs(answer)
        return Ahead(found[0].key, requests.revision(answer) + 1) if found else None
