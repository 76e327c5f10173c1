"""How a part of a lock is asked for at etcd: it is granted beside others, so the whole line says whose turn it is.

A single try that does not fit puts nothing. It looks, and puts its key if nobody has come since: that some may have
gone can only make it fit better. Who comes for a lock that is free, or that is shared as it wants to share it, needs no
look.
"""

from __future__ import annotations

from dibs.part import Part, other_slots
from dibs.ports.etcd import Json
from dibs.stores import etcd_requests as requests
from dibs.stores.etcd_bid import Answer, Bid
from dibs.stores.etcd_keep import Keep
from dibs.stores.etcd_keys import Naming
from dibs.stores.etcd_line import Standing, standing
from dibs.stores.etcd_waiting import Waiting
from dibs.stores.store import Busy


class Parts:
    """The parts that one client asks for."""

    def __init__(self, naming: Naming, keep: Keep, waiting: Waiting) -> None:
        self._naming, self._keep, self._waiting = naming, keep, waiting

    async def ask(self, bid: Bid, part: Part, until: float) -> Answer:
        """Take it, or a place in line, or learn who has it; `Misuse` if those have parts of another size."""
        return await (self._queue if bid.ask.queue else self._try)(bid, part, until)

    async def _try(self, bid: Bid, part: Part, until: float) -> Answer:
        conditions = requests.alone(bid.keys, part)
        while True:
            request = requests.take_part(bid.keys, bid.key, bid.value, bid.held.id, conditions)
            answer = await self._keep.call(request, until, bid.ask.token)
            if answer.get("succeeded"):
                return self._waiting.served(bid.claim(requests.revision(answer)), bid.held), requests.term(answer)
            line = self._line(answer, 1)
            if line.find(bid.key) is not None:
                return await self._placed(bid, part, answer, 0, until)
            if not line.fits(part):
                self._keep.gone(bid.ask.token)
                _refuse_other_slots(bid, part, line)
                return self._busy(bid, answer, 0), requests.term(answer)
            conditions = [requests.nobody_after(bid.keys, requests.revision(answer))]

    async def _queue(self, bid: Bid, part: Part, until: float) -> Answer:
        leases, conditions = requests.Leases(bid.held.id, bid.line.id), requests.alone(bid.keys, part)
        request = requests.queue_part(bid.keys, bid.key, bid.value, leases, conditions, called=bid.called)
        answer = await self._keep.call(request, until, bid.ask.token)
        return await self._placed(bid, part, answer, 1 if answer.get("succeeded") else 0, until)

    async def _placed(self, bid: Bid, part: Part, answer: Json, at: int, until: float) -> Answer:
        """Our key is there. What was read of the others stands at *at*; before that, if it was put just now, how."""
        line, term = self._line(answer, at + 1), requests.term(answer)
        own = line.find(bid.key)
        assert own is not None, "it was read in the step that put it, or found it"
        claim, turn = bid.claim(own.created), own in line.inside
        if not turn:
            _refuse_other_slots(bid, part, line)
        moved = bid.called and bid.ask.queue and not at
        under = bid.held.id if moved else own.lease
        should_be_under = bid.held.id if turn else bid.line.id
        # Whoever is next looks when it sees our key put anew: there may be room for two.
        told = moved or (at and requests.succeeded(answer, 0)) or bid.was_granted(own)
        if under != should_be_under or (turn and not told):
            term = await self._keep.move(claim, should_be_under, until)
        if turn:
            return self._waiting.served(claim, bid.held), term
        self._waiting.behind(bid.ask.token, line.ahead_of(own, bid.keys, requests.revision(answer)))
        return self._busy(bid, answer, at), term

    def _line(self, answer: Json, at: int) -> Standing:
        return standing(requests.read(answer, at), self._naming)

    def _busy(self, bid: Bid, answer: Json, at: int) -> Busy:
        return bid.busy(requests.read(answer, at), self._naming)


def _refuse_other_slots(bid: Bid, part: Part, line: Standing) -> None:
    if line.slots not in (None, part.slots):
        raise other_slots(bid.ask.name, part, line.slots)
