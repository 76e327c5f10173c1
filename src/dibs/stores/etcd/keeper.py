"""Keeps what etcd has granted: renewals, the end of what is not renewed, and the hand-over to another process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Iterable, Sequence

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.stores.etcd import requests, values
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.leases import EtcdLease, EtcdLeaseGone, EtcdLeases
from dibs.stores.etcd.port.gateway import TOO_MANY, Etcd, EtcdJson, EtcdRefused, wall_clock
from dibs.stores.etcd.requests import TOGETHER, Pair
from dibs.stores.etcd.tickets import EtcdTicket, EtcdTickets
from dibs.stores.store import Claim, RenewAnswer, settled

SWEEPING = 1.0
"""Seconds that a sweep may take of the time of another step."""

NO_LEASE = EtcdLease(0, 0, -math.inf, 0)
"""Stands for the lease of a key that was overwritten without one, as etcdctl does: the key would never end."""

Renewed = EtcdLease | LossReason | StoreUnavailable
"""A lease of etcd that was renewed; or why it is gone; or why that is not known."""


class LeaseKeeper:
    """The leases of etcd, and the tickets under them, of one client."""

    def __init__(self, etcd: Etcd, naming: EtcdNaming, runtime: Runtime) -> None:
        self._etcd, self._naming, self._runtime = etcd, naming, runtime
        self.leases = EtcdLeases(etcd, runtime, self._lease_ended)
        self.tickets = EtcdTickets()
        self.tell_loss: Callable[[str, str, LossReason], None] = lambda *_: None
        self._together = TOGETHER
        self._swept_at: dict[int, float] = {}  # by the ids of leases: the renewal that the last sweep followed

    async def lease_for(self, ttl: float, until: float, least: float | None = None) -> EtcdLease:
        """The lease for locks of *ttl*, sure to last: see `EtcdLeases.fit_for`. After its renewal, sweep under it."""
        lease = await self.leases.fit_for(ttl, until - self._runtime.now(), least)
        await self._sweep(lease, until)
        return lease

    async def look_after(self, leases: Iterable[int], until: float) -> None:
        """Find out which of *leases* are gone, and tell the holders under them."""
        for lease in leases:
            with contextlib.suppress(EtcdLeaseGone):
                await self.leases.keep(lease, until - self._runtime.now())

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Renew each lease of etcd that the claims are under, whichever client made it, and then read the keys.

        In this order, and under one leader: see `EtcdLease.term`. Reading takes a majority.
        """
        began, longest = self._runtime.now(), max((claim.ttl for claim in claims), default=0.0)
        tickets = [self.tickets.get(claim.token) for claim in claims]
        under, term = {ticket.lease for ticket in tickets if ticket is not None}, 0
        gone: dict[int, LossReason] = {}
        lost: dict[int, LossReason] = {}
        while True:
            leases = {lease: await self._renewed(lease, began + longest, term, until) for lease in under}
            gone |= {lease: reason for lease, reason in leases.items() if isinstance(reason, LossReason)}
            asked = [index for index in range(len(claims)) if index not in lost]
            found, term = await self._look(asked, claims, until)
            lost |= {index: reason for index, reason in found.items() if isinstance(reason, LossReason)}
            under = {pair.lease for pair in found.values() if isinstance(pair, Pair) and pair.lease}
            if all(_counts(leases.get(lease), term) for lease in under):
                break  # if not, a key was handed over, or the leader has changed
        answers: list[RenewAnswer] = [None] * len(claims)
        for index, pair in found.items():
            if isinstance(pair, StoreUnavailable):
                answers[index] = pair
            elif isinstance(pair, Pair):
                lease = leases[pair.lease] if pair.lease else NO_LEASE
                answers[index] = await self._renewal_of(claims[index], lease, pair.lease, began, until)
        doubtful: set[int] = set()
        for index, reason in lost.items():
            ticket = tickets[index]
            answers[index] = gone.get(ticket.lease, reason) if ticket is not None else reason  # as it was told
            doubtful |= {ticket.lease} if ticket is not None and reason is not LossReason.EVICTED else set()
        with contextlib.suppress(StoreUnavailable):  # if their lease is gone, other holders have to be told too
            await self.look_after(doubtful - gone.keys(), until)
        for lease in leases.values():
            if isinstance(lease, EtcdLease):
                await self._sweep(lease, until)
        return settled(answers)

    async def attach(self, claim: Claim, note: str, until: float) -> None:
        """Write this process into the value, and put the key under a lease of this client."""
        key = self._naming.key(claim.name, claim.token)
        who = here(self._runtime.pid(), claim.name, note)
        lease = await self.lease_for(claim.ttl, until)
        changed = False
        while not changed:
            [found] = await self.read([requests.get(key)], until)
            if not found or found[0].created != claim.fence:
                return  # lost since its last renewal: the next one says so
            value = values.facts(who, values.since(found[0].value))
            step = requests.put(key, value, lease.id)
            answer = await self.call(requests.txn([requests.unchanged(found[0])], [step], []), until, claim.token)
            changed = bool(answer.get("succeeded"))
        self.hold(claim, lease)
        await self.leases.end_own(found[0].lease, until - self._runtime.now())

    async def detach(self, claim: Claim, until: float) -> None:
        """Put the key under a lease of its own, which ends after the ttl whatever becomes of this process."""
        lease = await self.leases.own(claim.ttl, until - self._runtime.now())
        try:
            moved = await self.move(claim, lease.id, until)
        except EtcdRefused:
            await self.leases.end_own(lease.id, until - self._runtime.now())
            raise
        self.tickets.drop(claim.token)
        if not moved.get("succeeded"):
            await self.leases.end_own(lease.id, until - self._runtime.now())

    async def move(self, claim: Claim, lease: int, until: float, value: str = "") -> EtcdJson:
        """Put the key of a grant under *lease* if it is still there; if not, the next renewal says so."""
        key = self._naming.key(claim.name, claim.token)
        step = requests.txn([requests.created_at(key, claim.fence)], [requests.move(key, lease, value)], [])
        return await self.call(step, until, claim.token)

    def hold(self, claim: Claim, lease: EtcdLease) -> None:
        """Note that *claim* holds under *lease*, for its ttl from now."""
        key, until = self._naming.key(claim.name, claim.token), self._runtime.now() + claim.ttl
        self.tickets.put(EtcdTicket(claim.name, claim.token, key, lease.id, until, claim.fence))

    def gone(self, token: str) -> None:
        """Note that the key of *token* is not there. An ask that was not answered may still put it there."""
        if self._etcd.unanswered(token):
            self.tickets.given_up(token)
        else:
            self.tickets.drop(token)

    async def read(self, steps: Sequence[EtcdJson], until: float) -> list[list[Pair]]:
        """Read in one transaction; returns what each step has found."""
        answer = await self.call(requests.txn([], steps, []), until)
        return [requests.read(answer, ticket) for ticket in range(len(steps))]

    async def call(self, txn: EtcdJson, until: float, ordering_key: str = "") -> EtcdJson:
        """Do the transaction *txn* by the moment *until*, and return its answer."""
        return await self._etcd.call("kv/txn", txn, until - self._runtime.now(), ordering_key)

    def forked(self) -> None:
        """Forget leases and keys: they are the parent's."""
        self.leases.forked()
        self.tickets, self._swept_at = EtcdTickets(), {}

    # --- renewals ------------------------------------------------------------------------------------------

    async def _renewed(self, lease_id: int, end: float, term: int, until: float) -> Renewed:
        """The lease, sure to last until *end*, and renewed under the leader of *term*; 0 stands for any leader."""
        known, now = self.leases.known(lease_id), self._runtime.now()
        if known is not None and known.lasts(now, end - now) and term in {0, known.term}:
            return known
        try:
            return await self.leases.keep(lease_id, until - now)
        except EtcdLeaseGone as gone:
            return gone.reason
        except StoreUnavailable as error:
            return error

    async def _look(
        self, indexes: Sequence[int], claims: Sequence[Claim], until: float
    ) -> tuple[dict[int, Pair | LossReason | StoreUnavailable], int]:
        """The key of each claim, or why it is not there; and the term of the leader.

        A holder that has lost its key is told at once: the next request might not be answered.
        """
        found: dict[int, Pair | LossReason | StoreUnavailable] = {}
        term = 0
        while some := [index for index in indexes if index not in found][: self._together]:
            try:
                answer = await self.call(requests.txn([], [self._look_at(claims[index]) for index in some], []), until)
            except StoreUnavailable as error:
                found |= {} if self._takes_fewer(error) else dict.fromkeys(some, error)
                continue
            term = term or requests.term(answer)
            for number, index in enumerate(some):
                there, pairs = requests.looked(answer, number)
                found[index] = pairs[0] if there else self._lost(claims[index], pairs[0].value if pairs else "")
        return found, term

    def _takes_fewer(self, error: StoreUnavailable) -> bool:
        """Whether *error* says that these servers take only smaller transactions; ours are smaller from now on."""
        fewer = isinstance(error, EtcdRefused) and TOO_MANY in error.problem and self._together > 1
        self._together //= 2 if fewer else 1
        return fewer

    def _look_at(self, claim: Claim) -> EtcdJson:
        naming, (name, token, fence) = self._naming, claim[:3]
        return requests.look(naming.key(name, token), fence, naming.evicted(name, token))

    def _lost(self, claim: Claim, evicted: str) -> LossReason:
        """Why the key of *claim* is not there: the holder was evicted, as *evicted* says, or the key was deleted."""
        reason, ticket = values.why_not(evicted, claim.token), self.tickets.get(claim.token)
        if ticket is not None and ticket.fence == claim.fence:
            self.gone(claim.token)
            self.tell_loss(claim.name, claim.token, reason)
        return reason

    async def _renewal_of(self, claim: Claim, lease: Renewed, under: int, began: float, until: float) -> RenewAnswer:
        """What the renewal of its *lease* means for *claim*, which moves to another lease if that is too short."""
        if not isinstance(lease, EtcdLease):
            return lease
        if not lease.lasts(began, claim.ttl):
            try:
                lease = await self.leases.fit_for(claim.ttl, until - self._runtime.now())
                value = "" if under else await self._mended(claim, until)
                if requests.term(await self.move(claim, lease.id, until, value)) != lease.term:
                    return OutcomeUnknown(str(self._etcd), "its leader has changed meanwhile")
                await self.leases.end_own(under, until - self._runtime.now())
            except StoreUnavailable as error:
                return error
        self.hold(claim, lease)
        return None

    async def _mended(self, claim: Claim, until: float) -> str:
        """The value for a key that was overwritten without a lease: its own, if that is ours, or a new one."""
        [found] = await self.read([requests.get(self._naming.key(claim.name, claim.token))], until)
        if found and values.is_ours(found[0].value):
            return found[0].value
        return values.facts(here(self._runtime.pid(), claim.name, ""), wall_clock())

    # --- the end of what is not renewed --------------------------------------------------------------------

    async def _sweep(self, lease: EtcdLease, until: float) -> None:
        """Delete the keys of overdue tickets: *lease* was renewed, so the keys under it would stay."""
        if self._swept_at.get(lease.id) == lease.kept_at or self.leases.known(lease.id) is None:
            return  # done; or the lease is another client's, which sweeps by itself
        now = self._runtime.now()
        ours = {known.id for known in self.leases.all()}
        self._swept_at = {known: at for known, at in self._swept_at.items() if known in ours}
        self._swept_at[lease.id] = lease.kept_at
        try:
            overdue = self.tickets.overdue(now)
            for start in range(0, len(overdue), self._together):
                await self._end(overdue[start : start + self._together], ours, min(until, now + SWEEPING))
        except StoreUnavailable as error:
            self._takes_fewer(error)  # the next sweep, after the next renewal, deletes the rest

    async def _end(self, tickets: Sequence[EtcdTicket], ours: Container[int], until: float) -> None:
        """Delete the keys that are still under a lease of ours: another process may have taken some over."""
        read = await self.read([requests.get(ticket.key, keys_only=True) for ticket in tickets], until)
        ends = [requests.end(pairs[0]) for pairs in read if pairs and (pairs[0].lease in ours or not pairs[0].lease)]
        if ends:
            await self.call(requests.txn([], ends, []), until)
        for ticket in tickets:
            self.tickets.drop(ticket.token)
            self._etcd.forget(ticket.token)

    def _lease_ended(self, lease: int, reason: LossReason) -> None:
        """Tell all holders under *lease* at once: etcd has ended it, and deleted the keys under it."""
        for ticket in self.tickets.under(lease):
            self.tickets.drop(ticket.token)
            if ticket.fence:
                self.tell_loss(ticket.name, ticket.token, reason)


def _counts(lease: Renewed | None, term: int) -> bool:
    """Whether *lease*, as it was renewed, counts for the leader of *term*."""
    return lease is not None and (not isinstance(lease, EtcdLease) or lease.term == term)
