"""Keeps what etcd has granted: its leases and tickets, the end of what is not renewed, and the hand-over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Sequence

from dibs.errors import LossReason, StoreUnavailable
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.stores.etcd import requests, values
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.leases import EtcdLease, EtcdLeaseGone, EtcdLeases
from dibs.stores.etcd.port.gateway import TOO_MANY, Etcd, EtcdJson, EtcdRefused
from dibs.stores.etcd.requests import TOGETHER, Pair
from dibs.stores.etcd.tickets import EtcdTicket, EtcdTickets
from dibs.stores.store import Claim

SWEEPING = 1.0
"""Seconds that a sweep may take of the time of another step."""


class LeaseKeeper:
    """The leases of etcd, and the tickets under them, of one client."""

    def __init__(self, etcd: Etcd, naming: EtcdNaming, runtime: Runtime) -> None:
        self._etcd, self._naming, self._runtime = etcd, naming, runtime
        self.leases = EtcdLeases(etcd, runtime, self._lease_ended)
        self.tickets = EtcdTickets()
        self.tell_loss: Callable[[str, str, LossReason], None] = lambda *_: None
        self.together = TOGETHER
        self._swept_at: dict[int, float] = {}  # by the ids of leases: the renewal that the last sweep followed

    async def lease_for(self, ttl: float, until: float, least: float | None = None) -> EtcdLease:
        """The lease for locks of *ttl*, sure to last: see `EtcdLeases.fit_for`. After its renewal, sweep under it."""
        lease = await self.leases.fit_for(ttl, until - self._runtime.now(), least)
        await self.sweep(lease, until)
        return lease

    async def look_after(self, leases: Iterable[int], until: float) -> None:
        """Find out which of *leases* are gone, and tell the holders under them."""
        for lease in leases:
            with contextlib.suppress(EtcdLeaseGone):
                await self.leases.keep(lease, until - self._runtime.now())

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

    def takes_fewer(self, error: StoreUnavailable) -> bool:
        """Whether *error* says that these servers take only smaller transactions; ours are smaller from now on."""
        fewer = isinstance(error, EtcdRefused) and TOO_MANY in error.problem and self.together > 1
        self.together //= 2 if fewer else 1
        return fewer

    def forked(self) -> None:
        """Forget leases and keys: they are the parent's."""
        self.leases.forked()
        self.tickets, self._swept_at = EtcdTickets(), {}

    # --- the end of what is not renewed --------------------------------------------------------------------

    async def sweep(self, lease: EtcdLease, until: float) -> None:
        """Delete the keys of overdue tickets: *lease* was renewed, so the keys under it would stay."""
        if self._swept_at.get(lease.id) == lease.kept_at or self.leases.known(lease.id) is None:
            return  # done; or the lease is another client's, which sweeps by itself
        now = self._runtime.now()
        ours = {known.id for known in self.leases.all()}
        self._swept_at = {known: at for known, at in self._swept_at.items() if known in ours}
        self._swept_at[lease.id] = lease.kept_at
        try:
            overdue = self.tickets.overdue(now)
            for start in range(0, len(overdue), self.together):
                await self._end(overdue[start : start + self.together], ours, min(until, now + SWEEPING))
        except StoreUnavailable as error:
            self.takes_fewer(error)  # the next sweep, after the next renewal, deletes the rest

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
