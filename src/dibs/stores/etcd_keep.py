"""Keeps what was granted by etcd: renewals, the end of what nobody renews, and the hand-over to another process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from dibs.stores.store import Claim, PartlyRenewed

SWEEPING = 1.0
"""Seconds that the end of what nobody renews may take of another step's time."""

T = TypeVar("T")

Answers = list[LossReason | StoreUnavailable | None]


class Keep:
    """The leases of etcd, and the places under them, of one client."""

    def __init__(self, etcd: Etcd, naming: Naming, runtime: Runtime) -> None:
        self._etcd, self._naming, self._runtime = etcd, naming, runtime
        self.leases = Leases(etcd, runtime, self._lease_ended)
        self.places = Places()
        self.tell_loss: Callable[[str, str, LossReason], None] = lambda *_: None
        self._swept_at: dict[int, float] = {}  # by the leases: which of their renewals was followed by a sweep

    async def lease_for(self, ttl: float, until: float, least: float | None = None) -> Lease:
        """The lease for locks of *ttl*, sure to last: see `Leases.fit_for`. After its renewal, end what nobody renews."""
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
        """Look at the keys; then renew each lease of etcd that they are under, whosever it is."""
        found = await self._look(claims, until)
        answers: Answers = [None] * len(claims)
        by_lease: dict[int, list[int]] = {}
        missing = []
        for index, pair in enumerate(found):
            if pair is None:
                missing.append(index)
            elif pair.lease:  # one without a lease never ends
                by_lease.setdefault(pair.lease, []).append(index)
        await self._say_why(missing, claims, answers, until)
        for lease, group in by_lease.items():
            try:
                await self._renew_under(lease, [claims[index] for index in group], until)
            except Gone as gone:
                self._answer(answers, group, gone.reason)
            except StoreUnavailable as error:
                self._answer(answers, group, error)
        return self._settled(answers)

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

    async def move(self, claim: Claim, lease: int, until: float) -> None:
        """Put the key of a grant under *lease*, if it is still there; the next renewal says so if it is not."""
        key = self._naming.key(claim.name, claim.token)
        step = requests.txn([requests.created_at(key, claim.fence)], [requests.move(key, lease)], [])
        await self.call(step, until, claim.token)

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

    async def _look(self, claims: Sequence[Claim], until: float) -> list[Pair | None]:
        """The key of each claim; None if it is not there, or not that grant's."""
        found: list[Pair | None] = []
        for some in _batches(claims):
            keys = [self._naming.key(claim.name, claim.token) for claim in some]
            read = await self.read([requests.get(key, keys_only=True) for key in keys], until)
            for claim, pairs in zip(some, read, strict=True):
                found.append(pairs[0] if pairs and pairs[0].created == claim.fence else None)
        return found

    async def _renew_under(self, lease_id: int, claims: Sequence[Claim], until: float) -> None:
        """Let the lease last for all *claims*. Their keys were there a moment ago, so they live as long as it does."""
        lease = self.leases.known(lease_id)
        now = self._runtime.now()
        if lease is None or not lease.lasts(now, max(claim.ttl for claim in claims)):
            lease = await self.leases.keep(lease_id, until - now)
        for claim in claims:
            if lease.lasts(now, claim.ttl):
                self.hold(claim, lease)
            else:  # longer than what it was granted with
                longer = await self.leases.fit_for(claim.ttl, until - self._runtime.now())
                await self.move(claim, longer.id, until)
                self.hold(claim, longer)
        await self._sweep(lease, until)

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

    def _answer(self, answers: Answers, group: Sequence[int], answer: LossReason | StoreUnavailable) -> None:
        for index in group:
            answers[index] = answer

    def _settled(self, answers: Answers) -> list[LossReason | None]:
        """The answers; or the error, if none came; or both."""
        errors = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
        if not errors:
            return [answer for answer in answers if not isinstance(answer, StoreUnavailable)]
        worst = next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        if len(errors) == len(answers):
            raise worst
        raise PartlyRenewed(str(self._etcd), str(worst), answers)

    # --- the end of what nobody renews ---------------------------------------------------------------------

    async def _sweep(self, lease: Lease, until: float) -> None:
        """Delete the keys of places whose time has passed: *lease* was renewed, so they would stay with it."""
        if self._swept_at.get(lease.id) == lease.kept_at or self.leases.known(lease.id) is None:
            return  # done; or the lease is another client's, whose business it is
        now = self._runtime.now()
        ours = {known.id for known in self.leases.all()}
        self._swept_at = {
            **{known: at for known, at in self._swept_at.items() if known in ours},
            lease.id: lease.kept_at,
        }
        for place in self.places.elsewhere(ours):
            self.places.drop(place.token)  # their lease has ended, and they with it
            self._etcd.forget(place.token)
        overdue = [place for place in self.places.under(lease.id) if place.until <= now]
        try:
            for some in _batches(overdue):
                await self.call(
                    requests.txn([], [requests.end(place.key, lease.id) for place in some], []),
                    min(until, self._runtime.now() + SWEEPING),
                )
                for place in some:
                    self.places.drop(place.token)
                    self._etcd.forget(place.token)
        except StoreUnavailable:
            pass  # after the next renewal of the lease

    def _lease_ended(self, lease: int, reason: LossReason) -> None:
        """etcd has it no more, and none of the keys under it: tell at once whoever holds by one of them."""
        for place in self.places.under(lease):
            self.places.drop(place.token)
            if place.fence:
                self.tell_loss(place.name, place.token, reason)


def _batches(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), TOGETHER):
        yield things[start : start + TOGETHER]
