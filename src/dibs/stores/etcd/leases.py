"""The leases of etcd that this client's locks live under: one for each length, shared by all of them, renewed once.

A lease of etcd per lock would double what a lock costs. A shared one has a price of its own: it goes on when one of
its locks does not. So every key that may be there is a *place* with an end of its own, and whenever a shared lease is
renewed, the keys of the places that have ended are deleted (see `EtcdTickets` and `EtcdStore`).

The lengths of etcd are whole seconds, and a server raises short ones. What a lock is granted is half a second less:
within that time after a renewal of the shared lease, another lock is granted, or renewed, without one.
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
"""In the id of a lease that one key alone is under: when that key is gone, the lease is of no use to anybody."""


class EtcdLease(NamedTuple):
    """A lease of etcd, as it was when it was last confirmed."""

    id: int
    seconds: int
    """What the server gave, not what was asked for."""
    kept_at: float
    """When the request was sent that confirmed it: it lives for *seconds* from then on, at least."""
    term: int
    """The term of the leader that confirmed it. A leader that was cut off may confirm for a while what the next one,
    which counts anew, does not know; so it counts only if a majority answers afterwards under the same term."""

    @property
    def ttl(self) -> float:
        """What a lock under it is granted."""
        return self.seconds - SLACK

    def lasts(self, now: float, ttl: float) -> bool:
        """Whether it is sure to live for *ttl* from *now* on."""
        return self.kept_at + self.seconds >= now + ttl


class EtcdLeaseGone(Exception):
    """etcd has no such lease: it ended, or somebody revoked it."""

    def __init__(self, reason: LossReason) -> None:
        super().__init__(reason)
        self.reason = reason


class EtcdLeases:
    """Those of one client."""

    def __init__(self, etcd: Etcd, runtime: Runtime, gone: Callable[[int, LossReason], None]) -> None:
        """*gone* is called, once, for each lease of ours that etcd has no more."""
        self._etcd, self._runtime, self._tell_gone = etcd, runtime, gone
        self._fresh()

    def _fresh(self) -> None:
        self._mutex = self._runtime.mutex()
        self._shared: dict[int, EtcdLease] = {}  # by the seconds that were asked for
        self._made: dict[int, EtcdLease] = {}  # all that may be there, by their ids
        self._under_way: dict[int, Event] = {}

    async def fit_for(self, ttl: float, within: float, least: float | None = None) -> EtcdLease:
        """The shared lease for locks of *ttl*, made or renewed if need be.

        It lasts for *least* seconds from now, or without that for its `EtcdLease.ttl`.
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
            # Somebody else asks for it just now, and everybody else waits for what they get.
            if not await first.wait(max(0.0, until - self._runtime.now())):
                raise OutcomeUnknown(str(self._etcd), "no lease in time")

    async def keep(self, lease: int, within: float) -> EtcdLease:
        """Renew a lease, whosever it is; `EtcdLeaseGone` if etcd has it no more."""
        sent_at = self._runtime.now()
        answer = await self._etcd.call("lease/keepalive", {"ID": str(lease)}, within)
        result = answer.get("result", {})
        seconds = int(result.get("TTL", "0"))
        if seconds <= 0:  # status 200, and nothing else says that it is gone
            raise EtcdLeaseGone(self.gone(lease))
        kept = EtcdLease(lease, seconds, sent_at, requests.term(result))
        self._note(kept)
        return kept

    async def own(self, ttl: float, within: float) -> EtcdLease:
        """A lease that nobody shares, and that nobody here keeps: for what outlives this client."""
        return await self._granted(self._new_id() | OWN, math.ceil(ttl + SLACK), self._runtime.now() + within)

    async def end_own(self, lease: int, within: float) -> None:
        """End *lease* if one key alone was under it, which is gone now; if that cannot be done, it ends by itself."""
        if lease & OWN:
            with contextlib.suppress(StoreUnavailable):
                await self.revoke(lease, within)

    async def left(self, lease: int, within: float) -> float | None:
        """Seconds after which what was granted under *lease* ends; None if etcd has it no more."""
        answer = await self._etcd.call("lease/timetolive", {"ID": str(lease)}, within)
        left, seconds = int(answer.get("TTL", "-1")), int(answer.get("grantedTTL", "0"))
        return None if left < 0 else min(float(left), seconds - SLACK)

    def known(self, lease: int) -> EtcdLease | None:
        """What is known of a lease of ours."""
        return self._made.get(lease)

    def gone(self, lease: int) -> LossReason:
        """etcd has it no more: tell whoever counts on it, and say why it can be."""
        known = self._made.get(lease)
        early = known is not None and known.lasts(self._runtime.now(), 0)
        reason = LossReason.SESSION_ENDED if early else LossReason.EXPIRED
        self._forget(lease)
        if known is not None:
            self._tell_gone(lease, reason)
        return reason

    async def revoke(self, lease: int, within: float) -> None:
        """End a lease, and all keys under it."""
        try:
            await self._etcd.call("lease/revoke", {"ID": str(lease)}, within)
        except EtcdRefused as error:
            if error.code != Code.NOT_FOUND:
                raise
        self._forget(lease)

    def all(self) -> list[EtcdLease]:
        """Those of ours that may be there."""
        now = self._runtime.now()
        return [lease for lease in list(self._made.values()) if lease.lasts(now, 0)]

    def forked(self) -> None:
        """They are the parent's."""
        self._fresh()

    async def _kept_or_new(self, asked: int, until: float) -> EtcdLease:
        old = self._shared.get(asked)
        if old is not None and old.lasts(self._runtime.now(), 0):
            try:
                return await self.keep(old.id, until - self._runtime.now())
            except EtcdLeaseGone:
                pass
        asked_for = EtcdLease(self._new_id(), asked, until, 0)
        with self._mutex:  # it may be there once it was asked for
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
        """It was renewed."""
        with self._mutex:
            if lease.id in self._made:
                self._made[lease.id] = lease
                for asked, known in self._shared.items():
                    if known.id == lease.id:
                        self._shared[asked] = lease

    def _new_id(self) -> int:
        """60 random bits: nobody else takes it, and so the same request can be sent twice."""
        return int(self._runtime.token()[:15], 16) + 1
