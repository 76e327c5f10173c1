"""How a part of a lock is asked for at etcd: it is granted beside others, so the whole line says whose turn it is.

A single try that does not fit puts nothing. It looks, and puts its key if nobody has come since: that some may have
gone can only make it fit better. Who comes for a lock that is free, or that is shared as it wants to share it, needs no
look.
"""

from __future__ import annotations

from dibs.share import Share, other_slots
from dibs.stores.etcd import requests
from dibs.stores.etcd.attempt import Answer, Attempt
from dibs.stores.etcd.keep import LeaseKeeper
from dibs.stores.etcd.keys import Naming
from dibs.stores.etcd.port.gateway import Json
from dibs.stores.etcd.queue import Standing, standing
from dibs.stores.etcd.waiting import Waiting
from dibs.stores.store import Busy


class Shares:
    """The parts that one client asks for."""

    def __init__(self, naming: Naming, keep: LeaseKeeper, waiting: Waiting) -> None:
        self._naming, self._keep, self._waiting = naming, keep, waiting

    async def ask(self, attempt: Attempt, share: Share, until: float) -> Answer:
        """Take it, or a place in line, or learn who has it; `Misuse` if those have parts of another size."""
        return await (self._queue if attempt.ask.queue else self._try)(attempt, share, until)

    async def _try(self, attempt: Attempt, share: Share, until: float) -> Answer:
        conditions = requests.alone(attempt.keys, share)
        while True:
            request = requests.take_share(
                attempt.keys, attempt.key, attempt.mark, attempt.value, attempt.held.id, conditions
            )
            answer = await self._keep.call(request, until, attempt.ask.token)
            if answer.get("succeeded"):
                return self._waiting.served(attempt.claim(requests.revision(answer)), attempt.held), requests.term(
                    answer
                )
            line = self._line(answer, 1)
            if line.find(attempt.key) is not None:
                return await self._placed(attempt, share, answer, 0, until)
            if not line.fits(share):
                self._keep.gone(attempt.ask.token)
                _refuse_other_slots(attempt, share, line)
                return self._busy(attempt, answer, 0), requests.term(answer)
            conditions = [requests.nobody_after(attempt.keys, requests.revision(answer))]

    async def _queue(self, attempt: Attempt, share: Share, until: float) -> Answer:
        leases, conditions = requests.Leases(attempt.held.id, attempt.line.id), requests.alone(attempt.keys, share)
        request = requests.queue_share(
            attempt.keys, attempt.key, attempt.mark, attempt.value, leases, conditions, called=attempt.called
        )
        answer = await self._keep.call(request, until, attempt.ask.token)
        return await self._placed(attempt, share, answer, 1 if answer.get("succeeded") else 0, until)

    async def _placed(self, attempt: Attempt, share: Share, answer: Json, at: int, until: float) -> Answer:
        """Our key is there. What was read of the others stands at *at*; before that, if it was put just now, how."""
        line, term = self._line(answer, at + 1), requests.term(answer)
        own = line.find(attempt.key)
        assert own is not None, "it was read in the step that put it, or found it"
        claim, turn = attempt.claim(own.created), own in line.inside
        if not turn:
            _refuse_other_slots(attempt, share, line)
        moved = attempt.called and attempt.ask.queue and not at
        under = attempt.held.id if moved else own.lease
        should_be_under = attempt.held.id if turn else attempt.line.id
        # Whoever is next looks when it sees our key put anew: there may be room for two.
        told = moved or (at and requests.succeeded(answer, 0)) or attempt.was_granted(own)
        if under != should_be_under or (turn and not told):
            term = requests.term(await self._keep.move(claim, should_be_under, until, attempt.value if turn else ""))
        if turn:
            return self._waiting.served(claim, attempt.held), term
        self._waiting.behind(attempt.ask.token, line.ahead_of(own, attempt.keys, requests.revision(answer)))
        return self._busy(attempt, answer, at), term

    def _line(self, answer: Json, at: int) -> Standing:
        return standing(requests.read(answer, at), self._naming)

    def _busy(self, attempt: Attempt, answer: Json, at: int) -> Busy:
        return attempt.busy(requests.read(answer, at), self._naming)


def _refuse_other_slots(attempt: Attempt, share: Share, line: Standing) -> None:
    if line.slots not in (None, share.slots):
        raise other_slots(attempt.ask.name, share, line.slots)
