"""Waiting at etcd: whoever waits watches what can make it its turn, and keeps its own place meanwhile."""

from __future__ import annotations

from dibs.runtime import Runtime
from dibs.stores.etcd import requests
from dibs.stores.etcd.keep import LeaseKeeper
from dibs.stores.etcd.keys import Naming
from dibs.stores.etcd.leases import Lease
from dibs.stores.etcd.port.gateway import Etcd
from dibs.stores.etcd.queue import Ahead
from dibs.stores.store import Ask, Claim, Grant

IN_LINE = 2.5
"""Seconds for which a waiter keeps its place without showing that it is alive: it keeps those behind it waiting."""

KEEP_AT = 1 / 3
"""The part of its length after which a lease of etcd is renewed for whoever waits under it."""


class Waiting:
    """Those of one client who wait."""

    def __init__(self, etcd: Etcd, naming: Naming, keep: LeaseKeeper, runtime: Runtime) -> None:
        self._etcd, self._naming, self._keep, self._runtime = etcd, naming, keep, runtime
        self._ahead: dict[str, Ahead] = {}  # by the tokens of those who wait
        self._called: set[str] = set()  # the tokens of those whose watch has told them something

    def behind(self, token: str, ahead: Ahead) -> None:
        """*token* stands in line, behind *ahead*."""
        self._ahead[token] = ahead

    def was_called(self, token: str) -> bool:
        """Whether the watch of *token* has told it to ask again; only the next ask hears of it."""
        called = token in self._called
        self._called.discard(token)
        return called

    def served(self, claim: Claim, lease: Lease) -> Grant:
        """It holds the lock, under *lease*, and waits no more."""
        self.forget(claim.token)
        self._keep.hold(claim, lease)
        return Grant(claim.fence, claim.ttl)

    def forget(self, token: str) -> None:
        """It does not wait any more."""
        self._ahead.pop(token, None)
        self._called.discard(token)

    async def wait(self, ask: Ask, until: float) -> None:
        """Watch until it is worth asking again, or until *until*."""
        place = self._keep.places.get(ask.token)
        ahead = self._ahead.pop(ask.token, None) or await self._who_is_ahead(ask, until)
        if place is None or ahead is None:
            return
        left = until - self._runtime.now()
        with await self._etcd.watch(ahead.key, ahead.revision, left, end=ahead.end, puts=ahead.puts) as watch:
            while (left := until - self._runtime.now()) > 0:
                line = await self._keep.lease_for(min(ask.ttl, IN_LINE), until)
                if line.id != place.lease:
                    return  # ours has ended, and our place with it
                self._keep.places.put(place._replace(until=self._runtime.now() + line.ttl))
                gone = await watch.told(min(left, line.seconds * KEEP_AT))
                if gone is None:
                    continue
                ahead = ahead.without(gone)
                if place.key not in gone and ahead.is_over:
                    self._called.add(ask.token)
                    return
                if not ahead.end or not gone or place.key in gone:
                    return

    def forked(self) -> None:
        """They are the parent's."""
        self._ahead, self._called = {}, set()

    async def _who_is_ahead(self, ask: Ask, until: float) -> Ahead | None:
        """Whoever is next before us now; None if we are the first, or not in line, or it is better to ask again."""
        if ask.share is not None:
            return None  # to ask tells more of a line in which several hold the name
        keys = self._naming.keys(ask.name)
        [own] = await self._keep.read([requests.get(self._naming.key(ask.name, ask.token))], until)
        if not own:
            return None
        before = requests.before(keys, own[0].created)
        answer = await self._etcd.call("kv/range", before, until - self._runtime.now())
        found = requests.pairs(answer)
        return Ahead(found[0].key, requests.revision(answer) + 1) if found else None
