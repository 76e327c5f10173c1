"""The leases of etcd that this client's locks live under: one for each length, shared by all of them, renewed once.

A lease of etcd for each lock would double the cost of a lock. A shared one has a price of its own: it goes on when one
of its locks does not. So every key that may be there has a ticket with an end of its own, and whenever a shared lease
is renewed, the keys of overdue tickets are deleted (see `EtcdTickets` and `LeaseKeeper`).

etcd counts leases in whole seconds, and raises short ones. A lock is granted half a second less than its lease has:
so within half a second after a renewal, further locks are granted or renewed under the same lease without another.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.runtime import Event, Runtime
from dibs.stores.etcd import requests
from dibs.stores.etcd.port.gateway import Code, Etcd, EtcdRefused

SLACK = 0.5
"""Seconds by which a lease of etcd is longer than the locks under it."""


OWN = 1 << 61
"""A bit in the id of a lease with a single key: when that key is gone, the lease is of no use and can be ended."""


class EtcdLease(NamedTuple):
    """A lease of etcd, as it was when it was last confirmed."""

    id: int
    seconds: int
    """Its length as the server gave it, which may be more than was asked for."""
    kept_at: float
    """When the request that confirmed it was sent: it lives for at least *seconds* from then."""
    term: int
    """The term of the leader that confirmed it. A leader that was cut off may for a while confirm renewals that the
    next leader does not know of. So a renewal counts only if a majority answers afterwards under the same term."""

    @property
    def ttl(self) -> float:
        """The ttl that a lock under it is granted, in seconds."""
        return self.seconds - SLACK

    def lasts(self, now: float, ttl: float) -> bool:
        """Whether it is sure to live for *ttl* from *now* on."""
        return self.kept_at + self.seconds >= now + ttl


class EtcdLeaseGone(Exception):
    """etcd has no such lease: it ended, or was revoked."""

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason = reason


class EtcdLeases:
    """The leases of one client: made, renewed and ended."""

    def __init__(self, etcd: Etcd, runtime: Runtime, gone: Callable[[int, LossReason], None]) -> None:
        """*gone* is called once for each lease of ours that turns out to be gone at etcd."""
        self._etcd, self._runtime, self._tell_gone = etcd, runtime, gone
        self._fresh()

    def _fresh(self) -> None:
        self._mutex = self._runtime.mutex()
        self._shared: dict[int, EtcdLease] = {}  # by the seconds that were asked for
        self._made: dict[int, EtcdLease] = {}  # all that may be there, by their ids
        self._under_way: dict[int, Event] = {}

    async def fit_for(self, ttl: float, within: float, least: float | None = None) -> EtcdLease:
        """The shared lease for locks of *ttl*, made or renewed if need be.

        It lasts for at least *least* seconds from now, or for its `EtcdLease.ttl` if that is None.
        """
        until = self._runtime.now() + within
        asked = math.ceil(ttl + SLACK)
        while True:
            lease = self._shared.get(asked)
            if lease is not None and lease.lasts(self._runtime.now(), lease.ttl if least is None else least):
                return lease
            mine = self._runtime.event()
            try:
                with self._mutex:
                    first = self._under_way.setdefault(asked, mine)
                if first is mine:
                    return await self._kept_or_new(asked, until)
            finally:  # also when Ctrl-C comes in between
                if self._under_way.get(asked) is mine:
                    del self._under_way[asked]
                mine.set()
            # Another caller makes or renews it just now: wait for that.
            if not await first.wait(max(0.0, until - self._runtime.now())):
                raise OutcomeUnknown(str(self._etcd), "no lease in time")

    async def keep(self, lease: int, within: float) -> EtcdLease:
        """Renew a lease of any client; `EtcdLeaseGone` if etcd does not have it."""
        sent_at = self._runtime.now()
        answer = await self._etcd.call("lease/keepalive", {"ID": str(lease)}, within)
        result = answer.get("result", {})
        seconds = int(result.get("TTL", "0"))
        if seconds <= 0:  # the status is 200, and only this says that the lease is gone
            raise EtcdLeaseGone(self.gone(lease))
        kept = EtcdLease(lease, seconds, sent_at, requests.term(result))
        self._note(kept)
        return kept

    async def own(self, ttl: float, within: float) -> EtcdLease:
        """A lease for a single key, which this client does not keep: for what outlives it."""
        return await self._granted(self._new_id() | OWN, math.ceil(ttl + SLACK), self._runtime.now() + within)

    async def end_own(self, lease: int, within: float) -> None:
        """End *lease* if it was for a single key, which is gone now; if that fails, it ends by itself."""
        if lease & OWN:
            with contextlib.suppress(StoreUnavailable):
                await self.revoke(lease, within)

    async def left(self, lease: int, within: float) -> float | None:
        """Seconds until grants under *lease* end; None if etcd does not have it."""
        answer = await self._etcd.call("lease/timetolive", {"ID": str(lease)}, within)
        left, seconds = int(answer.get("TTL", "-1")), int(answer.get("grantedTTL", "0"))
        return None if left < 0 else min(float(left), seconds - SLACK)

    def known(self, lease: int) -> EtcdLease | None:
        """A lease of this client as it was last confirmed; None if it is not one of ours, or is gone."""
        return self._made.get(lease)

    def gone(self, lease: int) -> LossReason:
        """Note that etcd does not have *lease*, tell the holders under it, and return the likely reason."""
        known = self._made.get(lease)
        early = known is not None and known.lasts(self._runtime.now(), 0)
        reason = LossReason.SESSION_ENDED if early else LossReason.EXPIRED
        self._forget(lease)
        if known is not None:
            self._tell_gone(lease, reason)
        return reason

    async def revoke(self, lease: int, within: float) -> None:
        """End a lease, and delete all keys under it."""
        try:
            await self._etcd.call("lease/revoke", {"ID": str(lease)}, within)
        except EtcdRefused as error:
            if error.code != Code.NOT_FOUND:
                raise
        self._forget(lease)

    def all(self) -> list[EtcdLease]:
        """The leases of this client that may still live."""
        now = self._runtime.now()
        return [lease for lease in list(self._made.values()) if lease.lasts(now, 0)]

    def forked(self) -> None:
        """Forget all leases: they are the parent's."""
        self._fresh()

    async def _kept_or_new(self, asked: int, until: float) -> EtcdLease:
        old = self._shared.get(asked)
        if old is not None and old.lasts(self._runtime.now(), 0):
            try:
                return await self.keep(old.id, until - self._runtime.now())
            except EtcdLeaseGone:
                pass
        asked_for = EtcdLease(self._new_id(), asked, until, 0)
        with self._mutex:  # before it is sent: from then on the lease may be there
            self._made = {lease.id: lease for lease in (*self.all(), asked_for)}
        made = await self._granted(asked_for.id, asked, until)
        with self._mutex:
            self._made[made.id] = self._shared[asked] = made
        return made

    async def _granted(self, lease: int, asked: int, until: float) -> EtcdLease:
        sent_at = self._runtime.now()
        try:
            answer = await self._etcd.call("lease/grant", {"ID": str(lease), "TTL": str(asked)}, until - sent_at)
        except EtcdRefused as error:
            if error.code != Code.EXISTS:
                raise
            return await self.keep(lease, until - self._runtime.now())  # the first answer was lost
        return EtcdLease(lease, int(answer["TTL"]), sent_at, requests.term(answer))

    def _forget(self, lease: int) -> None:
        with self._mutex:
            self._made.pop(lease, None)
            for asked in [asked for asked, known in self._shared.items() if known.id == lease]:
                del self._shared[asked]

    def _note(self, lease: EtcdLease) -> None:
        """Keep what is known of *lease*, which was renewed."""
        with self._mutex:
            if lease.id in self._made:
                self._made[lease.id] = lease
                for asked, known in self._shared.items():
                    if known.id == lease.id:
                        self._shared[asked] = lease

    def _new_id(self) -> int:
        """60 random bits: no other lease has that id, so the request for it can be sent twice."""
        return int(self._runtime.token()[:15], 16) + 1
