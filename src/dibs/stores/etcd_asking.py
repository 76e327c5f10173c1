"""How a lock is asked for and given back at etcd: which transactions are sent when."""

from __future__ import annotations

from dibs.errors import LossReason, Misuse
from dibs.holder import here
from dibs.part import part_of
from dibs.ports.etcd import Code, Etcd, Json, Refused, wall_clock
from dibs.runtime import Runtime
from dibs.stores import etcd_requests as requests
from dibs.stores import etcd_values as values
from dibs.stores.etcd_bid import Answer, Bid
from dibs.stores.etcd_keep import Keep
from dibs.stores.etcd_keys import Naming
from dibs.stores.etcd_line import Ahead, standing
from dibs.stores.etcd_parts import Parts
from dibs.stores.etcd_places import Place
from dibs.stores.etcd_waiting import IN_LINE, Waiting
from dibs.stores.store import Ask, Busy, Grant

ENOUGH = 0.5
"""Seconds that the lease of a place in line has to last when it is asked for: `Waiting.wait` renews it."""


class Asking:
    """One namespace of a cluster, as one client asks for it."""

    def __init__(self, etcd: Etcd, naming: Naming, keep: Keep, waiting: Waiting, runtime: Runtime) -> None:
        self._etcd, self._naming, self._keep, self._runtime = etcd, naming, keep, runtime
        self._waiting, self._parts = waiting, Parts(naming, keep, waiting)

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take it, or a place in line, or learn who has it."""
        while True:
            bid = await self._bid(ask, until)
            try:
                answer, term = await self._sent(bid, until)
            except Refused as error:
                if error.code != Code.NOT_FOUND:
                    raise
                # Nothing happened: somebody has revoked one.
                await self._keep.look_after({bid.held.id, bid.line.id}, until)
                continue
            if isinstance(answer, Busy) or term == bid.held.term:
                return answer
            # The leader has changed, and may not know of the last renewal: renew, and ask for the same once more.
            await self._keep.look_after({bid.held.id}, until)

    async def release(self, name: str, token: str, until: float) -> LossReason | None:
        """Delete the key; tell why it did not hold the lock."""
        place, repeated = self._keep.places.get(token), False
        if place is not None and place.fence:  # of what was granted here, to be there is to hold
            left = until - self._runtime.now()
            answer = await self._etcd.call("kv/deleterange", {"key": place.key}, left, token)
            if "deleted" in answer:
                self._left(token)
                return None
            repeated = "repeated" in answer
        keys, own = self._naming.keys(name), self._naming.key(name, token)
        answer = await self._keep.call(requests.leave(keys, own, part_of(token)), until, token)
        self._left(token)
        if requests.deleted(answer, 2):
            line = standing(requests.read(answer, 0), self._naming)
            return None if any(pair.key == own for pair in line.inside) else LossReason.TAKEN
        noted = requests.read(answer, 1)
        why = values.why_not(noted[0].value if noted else "", token)
        # Sent twice, since the first answer was lost: then it was the first that deleted it.
        return None if why is LossReason.TAKEN and (repeated or "repeated" in answer) else why

    async def _bid(self, ask: Ask, until: float) -> Bid:
        held = await self._keep.lease_for(ask.ttl, until)
        line = await self._keep.lease_for(min(ask.ttl, IN_LINE), until, ENOUGH) if ask.queue else held
        keys, own = self._naming.keys(ask.name), self._naming.key(ask.name, ask.token)
        value = values.facts(here(self._runtime.pid(), ask.name, ask.note), wall_clock())
        called, known = self._waiting.was_called(ask.token), self._keep.places.get(ask.token)
        return Bid(ask, keys, own, value, held, line, called, known)

    async def _sent(self, bid: Bid, until: float) -> Answer:
        name, token, line = bid.ask.name, bid.ask.token, bid.line
        # From now on the key may be there.
        self._keep.places.put(Place(name, token, bid.key, line.id, self._runtime.now() + line.ttl))
        part = part_of(token)
        if part is None:
            return await self._whole(bid, until)
        try:
            return await self._parts.ask(bid, part, until)
        except Misuse:
            if self._keep.places.get(token) is not None:  # it has a place in line, and nobody is to wait behind that
                await self.release(name, token, until)
            raise

    async def _whole(self, bid: Bid, until: float) -> Answer:
        leases = requests.Leases(bid.held.id, bid.line.id)
        if bid.ask.queue:
            request = requests.queue(bid.keys, bid.key, bid.value, leases, called=bid.called)
        else:
            request = requests.take(bid.keys, bid.key, bid.value, leases.held, again=bid.known is not None)
        answer = await self._keep.call(request, until, bid.ask.token)
        term = requests.term(answer)
        if answer.get("succeeded"):
            return self._placed(bid, answer), term
        holder, mine = requests.read(answer, 0), requests.read(answer, 1)
        if not mine:
            self._keep.gone(bid.ask.token)
            return bid.busy(holder, self._naming), term
        claim = bid.claim(mine[0].created)
        first = holder[0].key == bid.key
        should_be_under = leases.held if first else leases.line
        if should_be_under != (leases.held if bid.called else mine[0].lease):
            term = await self._keep.move(claim, should_be_under, until)
        return self._waiting.served(claim, bid.held) if first else bid.busy(holder, self._naming), term

    def _placed(self, bid: Bid, answer: Json) -> Grant | Busy:
        """Our key is there since this very answer: as the only one, or as the last in line."""
        claim = bid.claim(requests.revision(answer))
        if not bid.ask.queue or requests.succeeded(answer, 0):
            return self._waiting.served(claim, bid.held)
        holder, last = requests.read(answer, 1), requests.read(answer, 2)
        self._waiting.behind(bid.ask.token, Ahead(last[1].key, claim.fence + 1))
        return bid.busy(holder, self._naming)

    def _left(self, token: str) -> None:
        """Its key is deleted."""
        self._waiting.forget(token)
        self._keep.gone(token)
        self._etcd.forget(token)
