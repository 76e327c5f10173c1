"""Renews the grants of etcd: the leases that their keys are under, and then a look whether the keys are still there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.runtime.clock import wall_clock
from dibs.stores.etcd import requests, values
from dibs.stores.etcd.keeper import LeaseKeeper
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.leases import EtcdLease, EtcdLeaseGone
from dibs.stores.etcd.port.gateway import Etcd, EtcdJson
from dibs.stores.etcd.requests import Pair
from dibs.stores.store import Claim, RenewAnswer, settled

NO_LEASE = EtcdLease(0, 0, -math.inf, 0)
"""Stands for the lease of a key that was overwritten without one, as etcdctl does: the key would never end."""

Renewed = EtcdLease | LossReason | StoreUnavailable
"""A lease of etcd that was renewed; or why it is gone; or why that is not known."""

FoundKeys = dict[int, Pair | LossReason | StoreUnavailable]
"""By the index of a claim: its key, or why it is not there, or why that is not known."""


class EtcdRenewals:
    """Renews claims of one namespace on behalf of one client."""

    def __init__(self, etcd: Etcd, naming: EtcdNaming, keeper: LeaseKeeper, runtime: Runtime) -> None:
        self._etcd, self._naming, self._keeper, self._runtime = etcd, naming, keeper, runtime

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Renew each lease of etcd that the claims are under, whichever client made it, and then read the keys.

        In this order, and under one leader: see `EtcdLease.term`. Reading takes a majority.
        """
        began, longest = self._runtime.now(), max((claim.ttl for claim in claims), default=0.0)
        tickets = [self._keeper.tickets.get(claim.token) for claim in claims]
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
        answers = await self._answers(claims, found, leases, began, until)
        doubtful: set[int] = set()
        for index, reason in lost.items():
            ticket = tickets[index]
            answers[index] = gone.get(ticket.lease, reason) if ticket is not None else reason  # as it was told
            doubtful |= {ticket.lease} if ticket is not None and reason is not LossReason.EVICTED else set()
        with contextlib.suppress(StoreUnavailable):  # if their lease is gone, other holders have to be told too
            await self._keeper.look_after(doubtful - gone.keys(), until)
        for lease in leases.values():
            if isinstance(lease, EtcdLease):
                await self._keeper.sweep(lease, until)
        return settled(answers)

    async def _answers(
        self, claims: Sequence[Claim], found: FoundKeys, leases: Mapping[int, Renewed], began: float, until: float
    ) -> list[RenewAnswer]:
        """The answer for each claim whose key was *found*, or could not be read; None for the others."""
        answers: list[RenewAnswer] = [None] * len(claims)
        for index, pair in found.items():
            if isinstance(pair, StoreUnavailable):
                answers[index] = pair
            elif isinstance(pair, Pair):
                lease = leases[pair.lease] if pair.lease else NO_LEASE
                answers[index] = await self._renewal_of(claims[index], lease, pair.lease, began, until)
        return answers

    async def _renewed(self, lease_id: int, end: float, term: int, until: float) -> Renewed:
        """The lease, sure to last until *end*, and renewed under the leader of *term*; 0 stands for any leader."""
        known, now = self._keeper.leases.known(lease_id), self._runtime.now()
        if known is not None and known.lasts(now, end - now) and term in {0, known.term}:
            return known
        try:
            return await self._keeper.leases.keep(lease_id, until - now)
        except EtcdLeaseGone as gone:
            return gone.reason
        except StoreUnavailable as error:
            return error

    async def _look(self, indexes: Sequence[int], claims: Sequence[Claim], until: float) -> tuple[FoundKeys, int]:
        """The key of each claim, or why it is not there; and the term of the leader.

        A holder that has lost its key is told at once: the next request might not be answered.
        """
        found: FoundKeys = {}
        term = 0
        while some := [index for index in indexes if index not in found][: self._keeper.together]:
            try:
                answer = await self._keeper.call(
                    requests.txn([], [self._look_at(claims[index]) for index in some], []), until
                )
            except StoreUnavailable as error:
                found |= {} if self._keeper.takes_fewer(error) else dict.fromkeys(some, error)
                continue
            term = term or requests.term(answer)
            for number, index in enumerate(some):
                there, pairs = requests.looked(answer, number)
                found[index] = pairs[0] if there else self._lost(claims[index], pairs[0].value if pairs else "")
        return found, term

    def _look_at(self, claim: Claim) -> EtcdJson:
        naming, (name, token, fence) = self._naming, claim[:3]
        return requests.look(naming.key(name, token), fence, naming.evicted(name, token))

    def _lost(self, claim: Claim, evicted: str) -> LossReason:
        """Why the key of *claim* is not there: the holder was evicted, as *evicted* says, or the key was deleted."""
        reason, ticket = values.why_not(evicted, claim.token), self._keeper.tickets.get(claim.token)
        if ticket is not None and ticket.fence == claim.fence:
            self._keeper.gone(claim.token)
            self._keeper.tell_loss(claim.name, claim.token, reason)
        return reason

    async def _renewal_of(self, claim: Claim, lease: Renewed, under: int, began: float, until: float) -> RenewAnswer:
        """What the renewal of its *lease* means for *claim*, which moves to another lease if that is too short."""
        if not isinstance(lease, EtcdLease):
            return lease
        if not lease.lasts(began, claim.ttl):
            try:
                lease = await self._keeper.leases.fit_for(claim.ttl, until - self._runtime.now())
                value = "" if under else await self._mended(claim, until)
                if requests.term(await self._keeper.move(claim, lease.id, until, value)) != lease.term:
                    return OutcomeUnknown(str(self._etcd), "its leader has changed meanwhile")
                await self._keeper.leases.end_own(under, until - self._runtime.now())
            except StoreUnavailable as error:
                return error
        self._keeper.hold(claim, lease)
        return None

    async def _mended(self, claim: Claim, until: float) -> str:
        """The value for a key that was overwritten without a lease: its own, if that is ours, or a new one."""
        [found] = await self._keeper.read([requests.get(self._naming.key(claim.name, claim.token))], until)
        if found and values.is_ours(found[0].value):
            return found[0].value
        return values.facts(here(self._runtime.pid(), claim.name, ""), wall_clock())


def _counts(lease: Renewed | None, term: int) -> bool:
    """Whether *lease*, as it was renewed, counts for the leader of *term*."""
    return lease is not None and (not isinstance(lease, EtcdLease) or lease.term == term)
