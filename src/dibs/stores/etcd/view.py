"""What people are shown of etcd: who holds which names, who waits, and the last eviction."""

from __future__ import annotations

from collections.abc import Iterable

from dibs.holder import Holder, LockState
from dibs.runtime import Runtime
from dibs.stores.etcd import requests, values
from dibs.stores.etcd.keeper import LeaseKeeper
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.port.gateway import Code, Etcd, EtcdJson, EtcdRefused
from dibs.stores.etcd.queue import etcd_queue
from dibs.stores.etcd.requests import Pair

FORGETS = "etcd keeps nothing of a grant that is over: the last fence may have been a higher one"


class EtcdView:
    """Reads one namespace of a cluster, for people."""

    def __init__(self, etcd: Etcd, naming: EtcdNaming, keeper: LeaseKeeper, runtime: Runtime) -> None:
        self._etcd, self._naming, self._keeper, self._runtime = etcd, naming, keeper, runtime

    async def holders(self, prefix: str, until: float) -> list[Holder]:
        """Read the keys, page by page, all as they were at one moment. The first in the queue of a name hold it."""
        queues: dict[str, list[Pair]] = {}
        for pair in await self._all_with(prefix, until):
            attempt = self._naming.attempt(pair.key)
            if attempt is not None:
                queues.setdefault(attempt.name, []).append(pair)
        by_age = {name: sorted(queue, key=lambda pair: pair.created) for name, queue in sorted(queues.items())}
        held = [(name, pair) for name, queue in by_age.items() for pair in etcd_queue(queue, self._naming).holders]
        left = await self._expiries((pair for _, pair in held), until)
        return [self._person(name, pair, pair.created, left[pair.lease]) for name, pair in held]

    async def show(self, name: str, until: float) -> LockState:
        """One transaction, and one request for the lease of each holder."""
        keys = self._naming.keys(name)
        pairs, noted = await self._keeper.read([requests.everybody(keys), requests.get(keys.evicted)], until)
        queue = etcd_queue(pairs, self._naming)
        record = values.read_evicted(noted[0].value) if noted else None
        eviction = record.eviction if record else None
        evicted = eviction.fence if eviction else 0
        left = await self._expiries(queue.holders, until)
        holders = tuple(self._person(name, pair, pair.created, left[pair.lease]) for pair in queue.holders)
        waiting = tuple(self._person(name, pair, 0, None) for pair in queue.waiters)
        if not holders:
            return LockState(name, evicted, None, (), eviction)
        sharing = holders if holders[0].share else ()
        remarks, last = (FORGETS,) if sharing else (), max(holders[-1].fence, evicted)
        return LockState(name, last, holders[0], waiting, eviction, remarks, sharing)

    def _person(self, name: str, pair: Pair, fence: int, expires_in: float | None) -> Holder:
        return values.holder(name, fence, pair, expires_in, self._naming.share(pair.key))

    async def _all_with(self, prefix: str, until: float) -> list[Pair]:
        begin, end = self._naming.folder(prefix)
        found: list[Pair] = []
        revision, more = 0, True
        while more:
            try:
                answer = await self._range(requests.page(begin, end, revision), until)
            except EtcdRefused as error:
                if error.code != Code.COMPACTED or not found:
                    raise
                return await self._all_with(prefix, until)  # etcd has forgotten that moment: read everything again
            found += requests.pairs(answer)
            revision, more = revision or requests.revision(answer), bool(answer.get("more"))
            begin = requests.after(found[-1].key) if found else end
        return found

    async def _range(self, request: EtcdJson, until: float) -> EtcdJson:
        return await self._etcd.call("kv/range", request, until - self._runtime.now())

    async def _expiries(self, pairs: Iterable[Pair], until: float) -> dict[int, float | None]:
        """For the lease of each pair, the seconds until its grants end; None for no lease, and for one that is gone."""
        left: dict[int, float | None] = {0: None}
        for lease in {pair.lease for pair in pairs} - {0}:
            left[lease] = await self._keeper.leases.left(lease, until - self._runtime.now())
        return left
