"""How a share of a lock is asked for at etcd. It is granted beside others, so the whole queue says whose turn it is.

A single try that does not fit puts no key. It reads the queue, and puts its key if nobody has come since: that some may
have gone only makes more room. A try for a lock that is free, or that is shared in the same way, need not read.
"""

from __future__ import annotations

from dibs.share import Share, other_slots
from dibs.stores.etcd import requests
from dibs.stores.etcd.attempt import EtcdAnswer, EtcdAttempt
from dibs.stores.etcd.keeper import LeaseKeeper
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.port.gateway import EtcdJson
from dibs.stores.etcd.queue import EtcdQueue, etcd_queue
from dibs.stores.etcd.waiting import EtcdWaiters
from dibs.stores.store import Busy


class EtcdShares:
    """Asks for shares on behalf of one client."""

    def __init__(self, naming: EtcdNaming, keeper: LeaseKeeper, waiting: EtcdWaiters) -> None:
        self._naming, self._keeper, self._waiting = naming, keeper, waiting

    async def ask(self, attempt: EtcdAttempt, share: Share, until: float) -> EtcdAnswer:
        """Take the share, or a ticket, or learn who has it; `Misuse` if the holders have shares of another size."""
        return await (self._queue if attempt.ask.queue else self._try)(attempt, share, until)

    async def _try(self, attempt: EtcdAttempt, share: Share, until: float) -> EtcdAnswer:
        conditions = requests.alone(attempt.keys, share)
        while True:
            request = requests.take_share(
                attempt.keys, attempt.key, attempt.mark, attempt.value, attempt.holding.id, conditions
            )
            answer = await self._keeper.call(request, until, attempt.ask.token)
            if answer.get("succeeded"):
                return self._waiting.served(attempt.claim(requests.revision(answer)), attempt.holding), requests.term(
                    answer
                )
            queue = self._read_queue(answer, 1)
            if queue.find(attempt.key) is not None:
                return await self._placed(attempt, share, answer, 0, until)
            if not queue.fits(share):
                self._keeper.gone(attempt.ask.token)
                _refuse_other_slots(attempt, share, queue)
                return self._busy(attempt, answer, 0), requests.term(answer)
            conditions = [requests.nobody_after(attempt.keys, requests.revision(answer))]

    async def _queue(self, attempt: EtcdAttempt, share: Share, until: float) -> EtcdAnswer:
        leases, conditions = (
            requests.EtcdLeaseIds(attempt.holding.id, attempt.waiting.id),
            requests.alone(attempt.keys, share),
        )
        request = requests.queue_share(
            attempt.keys, attempt.key, attempt.mark, attempt.value, leases, conditions, called=attempt.called
        )
        answer = await self._keeper.call(request, until, attempt.ask.token)
        return await self._placed(attempt, share, answer, 1 if answer.get("succeeded") else 0, until)

    async def _placed(self, attempt: EtcdAttempt, share: Share, answer: EtcdJson, at: int, until: float) -> EtcdAnswer:
        """The answer for an attempt whose key is there: its step *at* is the first key, and the next one the queue."""
        queue, term = self._read_queue(answer, at + 1), requests.term(answer)
        own = queue.find(attempt.key)
        assert own is not None, "it was read in the step that put it, or found it"
        claim, turn = attempt.claim(own.created), own in queue.holders
        if not turn:
            _refuse_other_slots(attempt, share, queue)
        moved = attempt.called and attempt.ask.queue and not at
        under = attempt.holding.id if moved else own.lease
        should_be_under = attempt.holding.id if turn else attempt.waiting.id
        # The next waiter looks when it sees our key put anew: there may be room for two.
        told = moved or (at and requests.succeeded(answer, 0)) or attempt.was_granted(own)
        if under != should_be_under or (turn and not told):
            term = requests.term(await self._keeper.move(claim, should_be_under, until, attempt.value if turn else ""))
        if turn:
            return self._waiting.served(claim, attempt.holding), term
        self._waiting.behind(attempt.ask.token, queue.ahead_of(own, attempt.keys, requests.revision(answer)))
        return self._busy(attempt, answer, at), term

    def _read_queue(self, answer: EtcdJson, at: int) -> EtcdQueue:
        return etcd_queue(requests.read(answer, at), self._naming)

    def _busy(self, attempt: EtcdAttempt, answer: EtcdJson, at: int) -> Busy:
        return attempt.busy(requests.read(answer, at), self._naming)


def _refuse_other_slots(attempt: EtcdAttempt, share: Share, queue: EtcdQueue) -> None:
    if queue.slots not in (None, share.slots):
        raise other_slots(attempt.ask.name, share, queue.slots)
