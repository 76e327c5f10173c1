"""Grants leases from etcd 3: a key for each attempt, in the order in which etcd created them.

The protocol is in `keys` and `requests`, and the leases under which the keys live are in `leases`. To take a lock is
one transaction, and to give it back another. etcd's own lock service (``v3lock``) is not used: it grants to a lease
that has ended, and takes "L/x" for "L".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.holder import Eviction, Holder, LockState, here, signature
from dibs.ports.http.source import from_url
from dibs.runtime import Runtime
from dibs.runtime.clock import wall_clock
from dibs.stores.etcd import requests, values
from dibs.stores.etcd.asking import EtcdAsking
from dibs.stores.etcd.keeper import LeaseKeeper
from dibs.stores.etcd.keys import EtcdNaming
from dibs.stores.etcd.port.gateway import Etcd, EtcdJson, EtcdRefused
from dibs.stores.etcd.queue import etcd_queue
from dibs.stores.etcd.renewal import EtcdRenewals
from dibs.stores.etcd.view import EtcdView
from dibs.stores.etcd.waiting import EtcdWaiters
from dibs.stores.guarantees import Ability, Bound, Effect, Guarantees, Promise
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

REMEMBER_EVICTIONS = 7 * 86_400.0
"""Seconds for which `show` knows of an eviction."""

PARTING = 1.0
"""Seconds that closing may take to end the leases."""


class EtcdStore(Store):
    """Grants from the keys of an etcd cluster; see docs/stores/etcd.md."""

    guarantees = Guarantees(
        name="etcd",
        good_for="locks that survive the loss of a server, where etcd runs already",
        fence="the revision of the whole store at which the key was created; falls only if a backup is restored",
        wake="a watch on the client just before the waiter",
        order="arrival",
        freed="after the ttl, and up to two seconds more",
        waiter_crash=Bound(
            5.0, "Its key is under a lease of 3 s that it renews, and etcd notices ended leases a little late."
        ),
        client_pause=Promise(Effect.FENCED, "The lease ends at etcd, and another gets the lock."),
        client_crash=Promise(Effect.FREED, "After the ttl, and up to two seconds more."),
        server_restart=Promise(Effect.KEPT, "Leases and keys are on disk, and every lease gets its whole length anew."),
        failover=Promise(Effect.KEPT, "The next leader knows every lease, and gives it its whole length anew."),
        partition=Promise(
            Effect.FREED, "A majority goes on granting; a holder that cannot reach it is told before its lease ends."
        ),
        clock_jump=Promise(Effect.KEPT, "Leases are counted by the leader's monotonic clock."),
        cannot={
            Ability.PUNCTUAL: "etcd counts leases in whole seconds and looks twice a second which have ended",
            Ability.MEMORY: "etcd keeps nothing of a lock without a holder; its next fence is higher all the same",
            Ability.RECORDS: "etcd is made for small things that change rarely, and is no place for results; take "
            "redis:// or postgresql:// for them",
        },
    )
    shortest_ttl = 0.5

    def __init__(self, etcd: Etcd, namespace: str, runtime: Runtime) -> None:
        self._etcd, self._namespace, self._runtime = etcd, namespace, runtime
        self._naming = EtcdNaming(namespace)
        self._keeper = LeaseKeeper(etcd, self._naming, runtime)
        self._renewals = EtcdRenewals(etcd, self._naming, self._keeper, runtime)
        self._waiting = EtcdWaiters(etcd, self._naming, self._keeper, runtime)
        self._asking = EtcdAsking(etcd, self._naming, self._keeper, self._waiting, runtime)
        self._view = EtcdView(etcd, self._naming, self._keeper, runtime)

    # --- the steps -----------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One transaction: take the lock, or a ticket, or learn who has it. A share may take two."""
        return await self._asking.grant(ask, self._runtime.now() + within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One request for a hundred keys, and one renewal for each lease of etcd that they are under."""
        return await self._renewals.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """One request: delete the key, whether it holds the lock or waits. That wakes the client that watches it."""
        return await self._asking.release(name, token, self._runtime.now() + within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Watch the client that has to go before it is our turn, and keep our own ticket meanwhile."""
        await self._waiting.wait(ask, self._runtime.now() + within)

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Look who holds the lock, then one transaction: if that is still so, delete the key and note the eviction."""
        until = self._runtime.now() + within
        keys = self._naming.keys(name)
        [pairs] = await self._keeper.read([requests.everybody(keys, keys_only=True)], until)
        held = next((pair for pair in etcd_queue(pairs, self._naming).holders if pair.created == fence), None)
        attempt = self._naming.attempt(held.key) if held is not None else None
        if held is None or attempt is None:
            return False
        by = signature(here(self._runtime.pid(), name, ""))
        eviction = Eviction(fence, reason, by, wall_clock())
        record = values.Evicted(attempt.token, self._runtime.token(), eviction)
        lease = await self._keeper.leases.own(REMEMBER_EVICTIONS, until - self._runtime.now())
        own, note = self._naming.evicted(name, attempt.token), values.evicted(record)
        # In two keys: the next eviction overwrites the first, and this holder may not have asked by then.
        notes = [requests.put(key, note, lease.id) for key in (keys.evicted, own)]
        still_holds = [requests.created_at(held.key, fence)]
        request = requests.txn(still_holds, [requests.delete(held.key), *notes], [requests.get(own)])
        try:
            answer = await self._keeper.call(request, until)
        except EtcdRefused:  # perhaps we may not write there: then the lease is of no use
            await self._keeper.leases.end_own(lease.id, until - self._runtime.now())
            raise
        if answer.get("succeeded"):
            await self._keeper.leases.end_own(held.lease, until - self._runtime.now())
            return True
        noted = requests.read(answer, 0)  # perhaps it was sent twice, and the first answer was lost
        if noted and values.read_evicted(noted[0].value) == record:
            return True
        await self._keeper.leases.revoke(lease.id, until - self._runtime.now())
        return False

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Read the keys, page by page, all as they were at one moment."""
        return await self._view.holders(prefix, self._runtime.now() + within)

    async def show(self, name: str, within: float) -> LockState:
        """One transaction, and one request for the lease of each holder."""
        return await self._view.show(name, self._runtime.now() + within)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write this process into the value, and put the key under a lease of this client."""
        await self._keeper.attach(claim, note, self._runtime.now() + within)

    async def detach(self, claim: Claim, within: float) -> None:
        """Put the key under a lease of its own, which ends after the ttl whatever becomes of this process."""
        await self._keeper.detach(claim, self._runtime.now() + within)

    def compare(self, claim: Claim) -> EtcdJson:
        """A condition for the caller's own transaction: that this grant still holds."""
        return requests.created_at(self._naming.key(claim.name, claim.token), claim.fence)

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Do *call* for every grant whose lease etcd has ended."""
        self._keeper.tell_loss = call

    async def close(self) -> None:
        """End the leases, so that none of our keys is left, and close the connections."""
        until = self._runtime.now() + PARTING
        try:
            for lease in self._keeper.leases.all():
                await self._keeper.leases.revoke(lease.id, until - self._runtime.now())
        except StoreUnavailable:
            pass  # they end by themselves
        finally:
            await self._etcd.close()

    def forked(self) -> None:
        """Forget leases, keys and connections: they are the parent's."""
        self._waiting.forked()
        self._keeper.forked()
        self._etcd.forked()

    def __repr__(self) -> str:
        return f"{self._etcd}, namespace {self._namespace!r}"


def open_url(url: str, namespace: str, runtime: Runtime) -> EtcdStore:
    """``etcd://host1,host2`` and ``etcds://``, with TLS."""
    tls = url.partition(":")[0].lower() == "etcds"
    source, _, path = from_url(url, kind="etcd", port=2379, tls=tls)
    if path.strip("/"):
        raise Misuse(f"{source}: etcd has no databases, so the URL has no path; a namespace keeps locks apart")
    if bool(source.user) != bool(source.password):
        raise Misuse(f"{source}: etcd logs in with a user and a password, as in etcd://user:password@host")
    return EtcdStore(Etcd(source, runtime), namespace, runtime)
