"""Grants leases from etcd 3: a key for each attempt, in the order in which etcd created them.

The protocol is in `etcd_keys` and `etcd_requests`, the leases that the keys live under in `etcd_leases`. To take a lock
is one transaction and to give it back another. etcd's own lock service (``v3lock``) is not used: it grants to a lease
that has ended, and takes "L/x" for "L".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.holder import Eviction, Holder, LockState, here
from dibs.ports.etcd import Code, Etcd, Json, Refused, wall_clock
from dibs.ports.http_source import from_url
from dibs.runtime import Runtime
from dibs.stores import etcd_requests as requests
from dibs.stores import etcd_values as values
from dibs.stores.etcd_keep import Keep
from dibs.stores.etcd_keys import Naming
from dibs.stores.etcd_leases import Lease
from dibs.stores.etcd_places import Place
from dibs.stores.etcd_requests import Pair
from dibs.stores.guarantees import Ability, Effect, Guarantees, Promise
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

IN_LINE = 2.5
"""Seconds for which a waiter keeps its place without showing that it is alive: it keeps those behind it waiting."""

ENOUGH = 0.5
"""Seconds that the lease of a place in line has to last when it is asked for: `wait` renews it."""

LOOK_AGAIN = 30.0
"""Seconds after which a waiter asks again although its watch says nothing; the core does so sooner."""

REMEMBER_EVICTIONS = 7 * 86_400.0
"""Seconds for which `show` knows of an eviction."""

KEEP_AT = 1 / 3
"""The part of its length after which a lease of etcd is renewed for whoever waits under it."""

PARTING = 1.0
"""Seconds that closing may take to end the leases."""


class Ahead(NamedTuple):
    """Who is next before a waiter."""

    key: str
    revision: int
    """From here on its end is still to come."""


class EtcdStore(Store):
    """Grants from the keys of an etcd cluster; see docs/stores/etcd.md."""

    guarantees = Guarantees(
        name="etcd",
        good_for="locks that survive the loss of a server, where etcd runs already",
        fence="the revision of the whole store at which the key was created; falls only if a backup is restored",
        wake="a watch on whoever is next before the waiter",
        order="arrival",
        freed="after the ttl, and up to two seconds more",
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
            Ability.MEMORY: "etcd keeps nothing of a lock that nobody holds; its next fence is higher all the same",
            Ability.SHARED: "whoever is first in its line has all of the lock; take redis:// or postgresql://",
            Ability.SEMAPHORE: "whoever is first in its line has all of the lock; take redis:// or postgresql://",
            Ability.RECORDS: "etcd is made for small things that change rarely, and is no place for results; take "
            "redis:// or postgresql:// for them",
        },
    )
    shortest_ttl = 0.5

    def __init__(self, etcd: Etcd, namespace: str, runtime: Runtime) -> None:
        self._etcd, self._namespace, self._runtime = etcd, namespace, runtime
        self._naming = Naming(namespace)
        self._keep = Keep(etcd, self._naming, runtime)
        self._ahead: dict[str, Ahead] = {}  # by the tokens of those who wait
        self._called: set[str] = set()  # the tokens of those whose watch has told them something

    # --- the steps -----------------------------------------------------------------------------------------

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One transaction: take it, or a place in line, or learn who has it."""
        until = self._runtime.now() + within
        while True:
            held = await self._keep.lease_for(ask.ttl, until)
            line = await self._keep.lease_for(min(ask.ttl, IN_LINE), until, ENOUGH) if ask.queue else held
            try:
                answer, term = await self._ask(ask, held, line, until)
            except Refused as error:
                if error.code != Code.NOT_FOUND:
                    raise
                await self._keep.look_after({held.id, line.id}, until)  # nothing happened: somebody has revoked one
                continue
            if isinstance(answer, Busy) or term == held.term:
                return answer
            # The leader has changed, and may not know of the last renewal: renew, and ask for the same once more.
            await self._keep.look_after({held.id}, until)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One look at the keys, a hundred in each; and one renewal for each lease of etcd that they are under."""
        return await self._keep.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Delete the key, whether it holds the lock or waits: one request. Whoever watches it is woken."""
        until = self._runtime.now() + within
        place, repeated = self._keep.places.get(token), False
        if place is not None and place.fence:  # of what was granted here, to be there is to hold
            answer = await self._etcd.call("kv/deleterange", {"key": place.key}, within, token)
            if "deleted" in answer:
                self._left(token)
                return None
            repeated = "repeated" in answer
        keys, own = self._naming.keys(name), self._naming.key(name, token)
        answer = await self._keep.call(requests.leave(keys, own), until, token)
        self._left(token)
        if requests.deleted(answer, 2):
            return None if requests.read(answer, 0)[0].key == own else LossReason.TAKEN
        noted = requests.read(answer, 1)
        why = values.why_not(noted[0].value if noted else "", token)
        # Sent twice, since the first answer was lost: then it was the first that deleted it.
        return None if why is LossReason.TAKEN and (repeated or "repeated" in answer) else why

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Watch whoever is next before us, and keep our own place meanwhile."""
        until = self._runtime.now() + within
        place = self._keep.places.get(ask.token)
        ahead = self._ahead.pop(ask.token, None) or await self._who_is_ahead(ask, until)
        if place is None or ahead is None:
            return
        with await self._etcd.watch(ahead.key, ahead.revision, until - self._runtime.now()) as watch:
            while (left := until - self._runtime.now()) > 0:
                line = await self._keep.lease_for(min(ask.ttl, IN_LINE), until)
                if line.id != place.lease:
                    return  # ours has ended, and our place with it
                self._keep.places.put(place._replace(until=self._runtime.now() + line.ttl))
                if await watch.ended(min(left, line.seconds * KEEP_AT)):
                    self._called.add(ask.token)
                    return

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Look who holds it, then one transaction: if that is still so, delete the key and note who did it."""
        until = self._runtime.now() + within
        keys = self._naming.keys(name)
        [held] = await self._keep.read([requests.first(keys)], until)
        attempt = self._naming.attempt(held[0].key) if held else None
        if attempt is None or held[0].created != fence:
            return False
        who = here(self._runtime.pid(), name, "")
        eviction = Eviction(fence, reason, f"{who.user} on {who.host} pid {who.pid}", wall_clock())
        record = values.Broken(attempt.token, self._runtime.token(), eviction)
        lease = await self._keep.leases.own(REMEMBER_EVICTIONS, until - self._runtime.now())
        steps = [requests.delete(held[0].key), requests.put(keys.evicted, values.broken(record), lease.id)]
        still_holds = [requests.created_at(held[0].key, fence)]
        answer = await self._keep.call(requests.txn(still_holds, steps, [requests.get(keys.evicted)]), until)
        if answer.get("succeeded"):
            return True
        noted = requests.read(answer, 0)  # it may have been sent twice, and the first answer got lost
        if noted and values.read_broken(noted[0].value) == record:
            return True
        await self._keep.leases.revoke(lease.id, until - self._runtime.now())
        return False

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Read the keys, page by page, all as they were at one moment; of each name the oldest holds it."""
        until = self._runtime.now() + within
        oldest: dict[str, Pair] = {}
        for pair in await self._all_with(prefix, until):
            attempt = self._naming.attempt(pair.key)
            if attempt is not None and (attempt.name not in oldest or pair.created < oldest[attempt.name].created):
                oldest[attempt.name] = pair
        left = {lease: await self._expires_in(lease, until) for lease in {pair.lease for pair in oldest.values()}}
        return [
            values.holder(name, pair.created, pair.value, left[pair.lease]) for name, pair in sorted(oldest.items())
        ]

    async def show(self, name: str, within: float) -> LockState:
        """One transaction, and a question for the holder's lease."""
        until = self._runtime.now() + within
        keys = self._naming.keys(name)
        line, noted = await self._keep.read([requests.everybody(keys), requests.get(keys.evicted)], until)
        record = values.read_broken(noted[0].value) if noted else None
        eviction = record.eviction if record else None
        if not line:
            return LockState(name, eviction.fence if eviction else 0, None, (), eviction)
        held, *behind = line
        holder = values.holder(name, held.created, held.value, await self._expires_in(held.lease, until))
        waiting = tuple(values.holder(name, 0, pair.value, None) for pair in behind)
        return LockState(name, held.created, holder, waiting, eviction)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Write ourselves into the value, and put the key under a lease of ours."""
        await self._keep.attach(claim, note, self._runtime.now() + within)

    async def detach(self, claim: Claim, within: float) -> None:
        """Put the key under a lease of its own, which ends after the ttl whatever becomes of us."""
        await self._keep.detach(claim, self._runtime.now() + within)

    def compare(self, claim: Claim) -> Json:
        """A condition for the caller's own transaction: that this grant holds at the very moment."""
        return requests.created_at(self._naming.key(claim.name, claim.token), claim.fence)

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Do *call* for every grant under a lease that etcd has no more."""
        self._keep.tell_loss = call

    async def close(self) -> None:
        """End the leases, so that nothing of ours is left, and close the connections."""
        until = self._runtime.now() + PARTING
        try:
            for lease in self._keep.leases.all():
                await self._keep.leases.revoke(lease.id, until - self._runtime.now())
        except StoreUnavailable:
            pass  # they end by themselves
        finally:
            await self._etcd.close()

    def forked(self) -> None:
        """Leases, keys and connections are the parent's."""
        self._ahead, self._called = {}, set()
        self._keep.forked()
        self._etcd.forked()

    def __repr__(self) -> str:
        return f"{self._etcd}, namespace {self._namespace!r}"

    # --- to take it ----------------------------------------------------------------------------------------

    async def _ask(self, ask: Ask, held: Lease, line: Lease, until: float) -> tuple[Grant | Busy, int]:
        """The answer, and the term of the leader under which it was given."""
        keys, own = self._naming.keys(ask.name), self._naming.key(ask.name, ask.token)
        value = values.facts(here(self._runtime.pid(), ask.name, ask.note), wall_clock())
        called = ask.token in self._called
        self._called.discard(ask.token)
        if ask.queue:
            request = requests.queue(keys, own, value, requests.Leases(held.id, line.id), called=called)
        else:
            again = self._keep.places.get(ask.token) is not None
            request = requests.take(keys, own, value, held.id, again=again)
        # From now on the key may be there.
        self._keep.places.put(Place(ask.name, ask.token, own, line.id, self._runtime.now() + line.ttl))
        answer = await self._keep.call(request, until, ask.token)
        term = requests.term(answer)
        if answer.get("succeeded"):
            return self._placed(ask, held, answer), term
        holder, mine = requests.read(answer, 0), requests.read(answer, 1)
        if not mine:
            self._keep.gone(ask.token)
            return _busy(ask, holder), term
        claim = Claim(ask.name, ask.token, mine[0].created, held.ttl)
        first = holder[0].key == own
        should_be_under = held.id if first else line.id
        if should_be_under != (held.id if called else mine[0].lease):
            term = await self._keep.move(claim, should_be_under, until)
        return self._granted(claim, held) if first else _busy(ask, holder), term

    def _placed(self, ask: Ask, held: Lease, answer: Json) -> Grant | Busy:
        """Our key is there since this very answer: as the only one, or as the last in line."""
        claim = Claim(ask.name, ask.token, requests.revision(answer), held.ttl)
        if not ask.queue or requests.succeeded(answer, 0):
            return self._granted(claim, held)
        holder, last = requests.read(answer, 1), requests.read(answer, 2)
        self._ahead[ask.token] = Ahead(last[1].key, claim.fence + 1)
        return _busy(ask, holder)

    def _granted(self, claim: Claim, lease: Lease) -> Grant:
        self._forget(claim.token)
        self._keep.hold(claim, lease)
        return Grant(claim.fence, claim.ttl)

    def _left(self, token: str) -> None:
        """Its key is deleted."""
        self._forget(token)
        self._keep.gone(token)
        self._etcd.forget(token)

    def _forget(self, token: str) -> None:
        """It does not wait any more."""
        self._ahead.pop(token, None)
        self._called.discard(token)

    async def _who_is_ahead(self, ask: Ask, until: float) -> Ahead | None:
        """Whoever is next before us now; None if we are the first, or not in line."""
        keys = self._naming.keys(ask.name)
        [own] = await self._keep.read([requests.get(self._naming.key(ask.name, ask.token))], until)
        if not own:
            return None
        answer = await self._range(requests.before(keys, own[0].created), until)
        found = requests.pairs(answer)
        return Ahead(found[0].key, requests.revision(answer) + 1) if found else None

    # --- to look -------------------------------------------------------------------------------------------

    async def _all_with(self, prefix: str, until: float) -> list[Pair]:
        begin, end = self._naming.folder(prefix)
        found: list[Pair] = []
        revision, more = 0, True
        while more:
            answer = await self._range(requests.page(begin, end, revision), until)
            found += requests.pairs(answer)
            revision, more = revision or requests.revision(answer), bool(answer.get("more"))
            begin = requests.after(found[-1].key) if found else end
        return found

    async def _range(self, request: Json, until: float) -> Json:
        return await self._etcd.call("kv/range", request, until - self._runtime.now())

    async def _expires_in(self, lease: int, until: float) -> float | None:
        if not lease:
            return None
        return await self._keep.leases.left(lease, until - self._runtime.now())


def _busy(ask: Ask, holder: list[Pair]) -> Busy:
    if not holder:  # it was let go in that very moment
        return Busy(None, 0.0)
    return Busy(values.holder(ask.name, holder[0].created, holder[0].value, None), LOOK_AGAIN)


def open_url(url: str, namespace: str, runtime: Runtime) -> EtcdStore:
    """``etcd://host1,host2`` and ``etcds://``, with TLS."""
    tls = url.partition(":")[0].lower() == "etcds"
    source, _, path = from_url(url, kind="etcd", port=2379, tls=tls)
    if path.strip("/"):
        raise Misuse(f"{source}: etcd has no databases, so the URL has no path; a namespace keeps locks apart")
    return EtcdStore(Etcd(source, runtime), namespace, runtime)
