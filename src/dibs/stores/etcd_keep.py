"""Keeps what was granted by etcd: renewals, the end of what nobody renews, and the hand-over to another process."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeVar

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import here
from dibs.ports.etcd import Etcd, Json
from dibs.runtime import Runtime
from dibs.stores import etcd_requests as requests
from dibs.stores import etcd_values as values
from dibs.stores.etcd_keys import Naming
from dibs.stores.etcd_leases import Gone, Lease, Leases
from dibs.stores.etcd_places import Place, Places
from dibs.stores.etcd_requests import TOGETHER, Pair
from dibs.stores.store import Claim, settled

SWEEPING = 1.0
"""Seconds that the end of what nobody renews may take of another step's time."""

T = TypeVar("T")

Answers = list[LossReason | StoreUnavailable | None]

Renewed = Lease | LossReason | StoreUnavailable
"""A lease of etcd that was renewed; or why it is gone; or why nobody knows."""


class Keep:
    """The leases of etcd, and the places under them, of one client."""

    def __init__(self, etcd: Etcd, naming: Naming, runtime: Runtime) -> None:
        self._etcd, self._naming, self._runtime = etcd, naming, runtime
        self.leases = Leases(etcd, runtime, self._lease_ended)
        self.places = Places()
        self.tell_loss: Callable[[str, str, LossReason], None] = lambda *_: None
        self._swept_at: dict[int, float] = {}  # by the leases: which of their renewals was followed by a sweep

    async def lease_for(self, ttl: float, until: float, least: float | None = None) -> Lease:
        """The lease for locks of *ttl*, sure to last: see `Leases.fit_for`. When it was renewed, sweep under it."""
        lease = await self.leases.fit_for(ttl, until - self._runtime.now(), least)
        await self._sweep(lease, until)
        return lease

    async def look_after(self, leases: Iterable[int], until: float) -> dict[int, LossReason]:
        """Find out which of *leases* are gone, and why."""
        gone: dict[int, LossReason] = {}
        for lease in leases:
            try:
                await self.leases.keep(lease, until - self._runtime.now())
            except Gone as ended:
                gone[lease] = ended.reason
        return gone

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Renew each lease of etcd that the claims are under, whosever it is, and then look whether the keys are there.

        In this order, and under one leader: see `Lease.term`. A majority answers what a look asks.
        """
        began, longest = self._runtime.now(), max((claim.ttl for claim in claims), default=0.0)
        places = [place for claim in claims if (place := self.places.get(claim.token)) is not None]
        under, term = {place.lease for place in places}, 0
        while True:
            leases = {lease: await self._renewed(lease, began + longest, term, until) for lease in under}
            found, term = await self._look(claims, until)
            under = {pair.lease for pair in found if pair is not None and pair.lease}
            if all(_counts(leases.get(lease), term) for lease in under):
                break  # else a key was handed over, or the leader has changed
        answers: Answers = [None] * len(claims)
        for index, pair in enumerate(found):
            if pair is not None and pair.lease:  # a key without a lease never ends
                answers[index] = await self._renewal_of(claims[index], leases[pair.lease], began, until)
        await self._say_why([index for index, pair in enumerate(found) if pair is None], claims, answers, until)
        for lease in leases.values():
            if isinstance(lease, Lease):
                await self._sweep(lease, until)
        return settled(answers)

    async def attach(self, claim: Claim, note: str, until: float) -> None:
        """Write ourselves into the value, and put the key under a lease of ours."""
        key = self._naming.key(claim.name, claim.token)
        who = here(self._runtime.pid(), claim.name, note)
        lease = await self.lease_for(claim.ttl, until)
        changed = False
        while not changed:
            [found] = await self.read([requests.get(key)], until)
            if not found or found[0].created != claim.fence:
                return  # lost since it was renewed: the next renewal says so
            value = values.facts(who, values.since(found[0].value))
            step = requests.put(key, value, lease.id)
            answer = await self.call(requests.txn([requests.unchanged(found[0])], [step], []), until, claim.token)
            changed = bool(answer.get("succeeded"))
        self.hold(claim, lease)

    async def detach(self, claim: Claim, until: float) -> None:
        """Put the key under a lease of its own, which ends after the ttl whatever becomes of us."""
        lease = await self.leases.own(claim.ttl, until - self._runtime.now())
        await self.move(claim, lease.id, until)
        self.places.drop(claim.token)

    async def move(self, claim: Claim, lease: int, until: float) -> int:
        """Put the key of a grant under *lease*, if it is still there; the next renewal says so if it is not."""
        key = self._naming.key(claim.name, claim.token)
        step = requests.txn([requests.created_at(key, claim.fence)], [requests.move(key, lease)], [])
        return requests.term(await self.call(step, until, claim.token))

    def hold(self, claim: Claim, lease: Lease) -> None:
        """From now on *claim* holds, for its ttl, under *lease*."""
        key, until = self._naming.key(claim.name, claim.token), self._runtime.now() + claim.ttl
        self.places.put(Place(claim.name, claim.token, key, lease.id, until, claim.fence))

    def gone(self, token: str) -> None:
        """The key of *token* is not there. What was sent and not answered may still put it there."""
        if self._etcd.unanswered(token):
            self.places.given_up(token)
        else:
            self.places.drop(token)

    async def read(self, steps: Sequence[Json], until: float) -> list[list[Pair]]:
        """Read in one transaction; what each step has found."""
        answer = await self.call(requests.txn([], steps, []), until)
        return [requests.read(answer, place) for place in range(len(steps))]

    async def call(self, txn: Json, until: float, strand: str = "") -> Json:
        """Do a transaction."""
        return await self._etcd.call("kv/txn", txn, until - self._runtime.now(), strand)

    def forked(self) -> None:
        """Leases and keys are the parent's."""
        self.leases.forked()
        self.places, self._swept_at = Places(), {}

    # --- renewals ------------------------------------------------------------------------------------------

    async def _renewed(self, lease_id: int, end: float, term: int, until: float) -> Renewed:
        """The lease, sure to last until *end*, and renewed under the leader of *term*; 0: under whichever."""
        known, now = self.leases.known(lease_id), self._runtime.now()
        if known is not None and known.lasts(now, end - now) and term in {0, known.term}:
            return known
        try:
            return await self.leases.keep(lease_id, until - now)
        except Gone as gone:
            return gone.reason
        except StoreUnavailable as error:
            return error

    async def _look(self, claims: Sequence[Claim], until: float) -> tuple[list[Pair | None], int]:
        """The key of each claim, None if it is not there, or not that grant's; and the term of the leader."""
        found: list[Pair | None] = []
        term = 0
        for some in _batches(claims):
            keys = [self._naming.key(claim.name, claim.token) for claim in some]
            steps = [requests.get(key, keys_only=True) for key in keys]
            answer = await self.call(requests.txn([], steps, []), until)
            for place, claim in enumerate(some):
                pairs = requests.read(answer, place)
                found.append(pairs[0] if pairs and pairs[0].created == claim.fence else None)
            term = term or requests.term(answer)
        return found, term

    async def _renewal_of(
        self, claim: Claim, lease: Renewed, began: float, until: float
    ) -> LossReason | StoreUnavailable | None:
        """What becomes of *claim* under *lease*: it goes under another if that is too short for it."""
        if not isinstance(lease, Lease):
            return lease
        if not lease.lasts(began, claim.ttl):
            try:
                lease = await self.leases.fit_for(claim.ttl, until - self._runtime.now())
                if await self.move(claim, lease.id, until) != lease.term:
                    return OutcomeUnknown(str(self._etcd), "its leader has changed meanwhile")
            except StoreUnavailable as error:
                return error
        self.hold(claim, lease)
        return None

    async def _say_why(self, missing: Sequence[int], claims: Sequence[Claim], answers: Answers, until: float) -> None:
        """Why keys are not there: their lease of etcd is gone, or somebody broke the lock, or deleted the key."""
        places = {index: self.places.get(claims[index].token) for index in missing}
        gone = await self.look_after({place.lease for place in places.values() if place is not None}, until)
        for some in _batches(missing):
            records = await self.read([requests.get(self._naming.keys(claims[i].name).evicted) for i in some], until)
            for index, record in zip(some, records, strict=True):
                place = places[index]
                why = values.why_not(record[0].value if record else "", claims[index].token)
                lost_with_lease = place is not None and place.lease in gone and why is not LossReason.EVICTED
                answers[index] = gone[place.lease] if place is not None and lost_with_lease else why
                self.gone(claims[index].token)

    # --- the end of what nobody renews ---------------------------------------------------------------------

    async def _sweep(self, lease: Lease, until: float) -> None:
        """Delete the keys of places whose time has passed: *lease* was renewed, so those under it would stay."""
        if self._swept_at.get(lease.id) == lease.kept_at or self.leases.known(lease.id) is None:
            return  # done; or the lease is another client's, whose business it is
        now = self._runtime.now()
        ours = {known.id for known in self.leases.all()}
        self._swept_at = {known: at for known, at in self._swept_at.items() if known in ours}
        self._swept_at[lease.id] = lease.kept_at
        try:
            for some in _batches(self.places.overdue(now)):
                await self._end(some, ours, min(until, now + SWEEPING))
        except StoreUnavailable:
            pass  # after the next renewal of the lease

    async def _end(self, places: Sequence[Place], ours: Container[int], until: float) -> None:
        """Delete those that are still under a lease of ours: another process may have taken them over."""
        read = await self.read([requests.get(place.key, keys_only=True) for place in places], until)
        ends = [requests.end(pairs[0]) for pairs in read if pairs and pairs[0].lease in ours]
        if ends:
            await self.call(requests.txn([], ends, []), until)
        for place in places:
            self.places.drop(place.token)
            self._etcd.forget(place.token)

    def _lease_ended(self, lease: int, reason: LossReason) -> None:
        """etcd has it no more, and none of the keys under it: tell at once whoever holds by one of them."""
        for place in self.places.under(lease):
            self.places.drop(place.token)
            if place.fence:
                self.tell_loss(place.name, place.token, reason)


def _counts(lease: Renewed | None, term: int) -> bool:
    """Whether what is known of a lease is what the leader of *term* knows."""
    return lease is not None and (not isinstance(lease, Lease) or lease.term == term)


def _batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), TOGETHER):
        yield things[start : start + TOGETHER]
