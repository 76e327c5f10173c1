"""How a lock is asked for and given back at etcd: which transactions are sent when."""

from __future__ import annotations

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.runtime.clock import wall_clock
from dibs.share import share_of
from dibs.stores.doubt import MARKED_FOR
from dibs.stores.etcd import requests, values
from dibs.stores.etcd.attempt import EtcdAnswer, EtcdAttempt
from dibs.stores.etcd.keeper import LeaseKeeper
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.port.gateway import Code, Etcd, EtcdJson, EtcdRefused
from dibs.stores.etcd.queue import Ahead, etcd_queue
from dibs.stores.etcd.shares import EtcdShares
from dibs.stores.etcd.tickets import EtcdTicket
from dibs.stores.etcd.waiting import WAITER_TTL, EtcdWaiters
from dibs.stores.store import Ask, Busy, Grant

ENOUGH = 0.5
"""Seconds that the lease of a ticket has to last when the ticket is taken: `EtcdWaiters.wait` renews it."""


class EtcdAsking:
    """Asks for the locks of one namespace, and gives them back, on behalf of one client."""

    def __init__(
        self, etcd: Etcd, naming: EtcdNaming, keeper: LeaseKeeper, waiting: EtcdWaiters, runtime: Runtime
    ) -> None:
        self._etcd, self._naming, self._keeper, self._runtime = etcd, naming, keeper, runtime
        self._waiting, self._shares = waiting, EtcdShares(naming, keeper, waiting)

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take the lock, or a ticket, or learn who has it."""
        while True:
            attempt = await self._attempt(ask, until)
            try:
                answer, term = await self._sent(attempt, until)
            except EtcdRefused as error:
                if error.code != Code.NOT_FOUND:
                    raise
                # Nothing happened: one of the leases was revoked.
                await self._keeper.look_after({attempt.holding.id, attempt.waiting.id}, until)
                continue
            if isinstance(answer, Busy) or term == attempt.holding.term:
                return answer
            # The leader has changed, and may not know of the last renewal: renew, and ask for the same once more.
            await self._keeper.look_after({attempt.holding.id}, until)

    async def release(self, name: str, token: str, until: float) -> LossReason | None:
        """Delete the key; None if it held the lock, or why it did not."""
        ticket, repeated, gone = self._keeper.tickets.get(token), False, False
        if ticket is not None and ticket.fence:  # a key that was granted here holds as long as it is there
            left = until - self._runtime.now()
            answer = await self._etcd.call("kv/deleterange", {"key": ticket.key}, left, token)
            if "deleted" in answer:
                await self._refuse_late(name, token, until)
                self._left(token)
                return None
            repeated, gone = "repeated" in answer, True
        keys, own = self._naming.keys(name), self._naming.key(name, token)
        leave = requests.leave(keys, own, self._naming.evicted(name, token), share_of(token))
        try:
            answer = await self._keeper.call(leave, until, token)
        except StoreUnavailable:
            if not gone or repeated or self._etcd.unanswered(token):
                raise
            self._left(token)
            return LossReason.TAKEN  # the first answer counts, even if we cannot find out why
        await self._refuse_late(name, token, until)
        self._left(token)
        if requests.deleted(answer, 2):
            queue = etcd_queue(requests.read(answer, 0), self._naming)
            held = next((pair for pair in queue.holders if pair.key == own), None)
            if held is not None:
                await self._keeper.leases.end_own(held.lease, until - self._runtime.now())
            return None if held is not None else LossReason.TAKEN
        noted = requests.read(answer, 1)
        why = values.why_not(noted[0].value if noted else "", token)
        # Sent twice, since the first answer was lost: then the first request deleted it.
        return None if why is LossReason.TAKEN and (repeated or "repeated" in answer) else why

    async def _attempt(self, ask: Ask, until: float) -> EtcdAttempt:
        held = await self._keeper.lease_for(ask.ttl, until)
        waiting = await self._keeper.lease_for(min(ask.ttl, WAITER_TTL), until, ENOUGH) if ask.queue else held
        keys, own = self._naming.keys(ask.name), self._naming.key(ask.name, ask.token)
        value = values.facts(here(self._runtime.pid(), ask.name, ask.note), wall_clock())
        called, known = self._waiting.was_called(ask.token), self._keeper.tickets.get(ask.token)
        return EtcdAttempt(ask, keys, own, self._naming.mark(ask.name, ask.token), value, held, waiting, called, known)

    async def _sent(self, attempt: EtcdAttempt, until: float) -> EtcdAnswer:
        name, token, lease = attempt.ask.name, attempt.ask.token, attempt.waiting
        # Before it is sent: from then on the key may be there.
        self._keeper.tickets.put(EtcdTicket(name, token, attempt.key, lease.id, self._runtime.now() + lease.ttl))
        share = share_of(token)
        if share is None:
            return await self._whole(attempt, until)
        try:
            return await self._shares.ask(attempt, share, until)
        except Misuse:
            if self._keeper.tickets.get(token) is not None:  # its key is in the queue, and nobody should wait behind it
                await self.release(name, token, until)
            raise

    async def _whole(self, attempt: EtcdAttempt, until: float) -> EtcdAnswer:
        leases = requests.EtcdLeaseIds(attempt.holding.id, attempt.waiting.id)
        if attempt.ask.queue:
            request = requests.queue(
                attempt.keys, attempt.key, attempt.mark, attempt.value, leases, called=attempt.called
            )
        else:
            request = requests.take(
                attempt.keys, attempt.key, attempt.mark, attempt.value, leases.holding, again=attempt.known is not None
            )
        answer = await self._keeper.call(request, until, attempt.ask.token)
        term = requests.term(answer)
        if answer.get("succeeded"):
            return self._placed(attempt, answer), term
        holder, mine = requests.read(answer, 0), requests.read(answer, 1)
        if not mine:
            self._keeper.gone(attempt.ask.token)
            return attempt.busy(holder, self._naming), term
        claim = attempt.claim(mine[0].created)
        first = holder[0].key == attempt.key
        should_be_under = leases.holding if first else leases.waiting
        under = leases.holding if attempt.called else mine[0].lease
        if should_be_under != under or (first and not attempt.called and not attempt.was_granted(mine[0])):
            term = requests.term(await self._keeper.move(claim, should_be_under, until, attempt.value if first else ""))
        return self._waiting.served(claim, attempt.holding) if first else attempt.busy(holder, self._naming), term

    def _placed(self, attempt: EtcdAttempt, answer: EtcdJson) -> Grant | Busy:
        """The answer to an ask that put our key: it is the only one, or the last in the queue."""
        claim = attempt.claim(requests.revision(answer))
        if not attempt.ask.queue or requests.succeeded(answer, 0):
            return self._waiting.served(claim, attempt.holding)
        holder, last = requests.read(answer, 1), requests.read(answer, 2)
        self._waiting.behind(attempt.ask.token, Ahead(last[1].key, claim.fence + 1))
        return attempt.busy(holder, self._naming)

    async def _refuse_late(self, name: str, token: str, until: float) -> None:
        """If an ask of *token* was not answered, leave a mark, so that it takes nothing if it is carried out late."""
        if self._etcd.unanswered(token):
            lease = await self._keeper.leases.own(MARKED_FOR, until - self._runtime.now())
            own, mark = self._naming.key(name, token), self._naming.mark(name, token)
            await self._keeper.call(requests.leave_for_good(own, mark, lease.id), until)

    def _left(self, token: str) -> None:
        """Forget *token*: its key is deleted."""
        self._waiting.forget(token)
        self._keeper.gone(token)
        self._etcd.forget(token)
