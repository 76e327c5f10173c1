"""Renews all leases of one client, says when they are lost, and gives back what could not be given back at once.

One thread or task per client, started by the first lease and ended when nothing is left to do. What is due
together goes out together. A failed renewal is not a loss: it is tried again until the lease's own deadline, and
the deadline itself is read from the clock by whoever looks (`Loss`), so a renewal that hangs hides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from dibs.core.budgets import LONGEST_STEP, RENEW_AT, RETURN_BUDGET, retry_after
from dibs.core.deadline import Deadline
from dibs.core.schedule import Entry, KeeperSchedule, Return
from dibs.errors import LossReason, StoreUnavailable
from dibs.log import logger
from dibs.runtime import Event, Job, Runtime
from dibs.stores.store import Ask, PartlyRenewed, Store

if TYPE_CHECKING:
    from dibs.core.lease import Lease, LeaseRef

JITTER = 0.1
"""Each renewal comes up to so much of its time earlier, so that leases taken together spread out."""

LONGEST_NAP = 1.0
"""Seconds: timers stand still while the machine sleeps, so the clock is looked at again after so much."""

LEAST_BUDGET = 0.3
"""Seconds that one renewal may take although a lease with a very short ttl waits behind it."""


class Keeper:
    """Looks after the leases of one client."""

    __slots__ = (
        "_bell",
        "_dropped",
        "_job",
        "_mutex",
        "_napping_until",
        "_runtime",
        "_schedule",
        "_shortest_ttl",
        "_stopped",
        "_store",
    )

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        mutex: AbstractContextManager[Any],
        dropped: Callable[[LeaseRef], bool],
    ) -> None:
        self._runtime, self._store, self._mutex, self._dropped = runtime, store, mutex, dropped
        self._schedule = KeeperSchedule()
        self._bell: Event | None = None  # made with the job: an event may need a running loop
        self._job: Job | None = None
        self._napping_until = -math.inf
        self._shortest_ttl = math.inf
        self._stopped = False

    # --- what the client and the leases ask ----------------------------------------------------------------

    def keep(self, lease: Lease) -> None:
        """Renew *lease* from now on, until it is given up or lost or nobody refers to it any more."""
        self._shortest_ttl = min(self._shortest_ttl, lease.ttl)
        self._add(self._renewal_at(lease.ttl), lease._ref)

    def drop(self) -> None:
        """One lease was given up."""
        with self._mutex:
            self._schedule.drop()

    async def renew_now(self, lease: Lease) -> None:
        """Renew *lease* at once; the keeper's own next renewal comes as it would have."""
        await self._renew([lease])

    def give_back(self, name: str, token: str, ttl: float) -> None:
        """Give back whatever *token* has, in the background; retry for its *ttl*."""
        now = self._runtime.now()
        with suppress(StoreUnavailable):  # no thread can be started now: the next keeper does it
            self._add(now, Return(name, token, now + ttl))

    async def stop(self, leases: Sequence[Lease], asks: Sequence[Ask], within: float) -> None:
        """End: give up *leases* and the places in line of *asks*, and take *within* seconds to give all of it back."""
        deadline = Deadline(self._runtime.now, within)
        with self._mutex:
            self._stopped, job = True, self._job
            if self._bell is not None:
                self._bell.set()
        for lease in leases:
            lease._leave()  # after the stop: at the end of an interpreter no thread can be started any more
        for ask in asks:  # whoever waits may be in a thread that the end of the interpreter just stops
            self.give_back(ask.name, ask.token, ask.ttl)
        if job is not None:
            await job.join(deadline.left())
        await self._give_back_the_rest(deadline)

    # --- the job -------------------------------------------------------------------------------------------

    def _add(self, due_at: float, entry: Entry) -> None:
        with self._mutex:
            self._schedule.add(due_at, entry)
            if self._job is None and not self._stopped:
                self._bell = self._runtime.event()
                self._napping_until = -math.inf
                self._job = self._runtime.spawn(self._run, "dibs keeper")
            elif due_at < self._napping_until and self._bell is not None:
                self._bell.set()

    async def _run(self) -> None:
        batch: list[Entry] | None = None
        try:
            while (batch := self._next_batch()) is not None:
                self._tell_dropped()
                if batch:
                    await self._serve(batch)
                else:
                    await self._nap()
        except BaseException:  # a loop that ends cancels its tasks, and some programs cancel all that they find
            with self._mutex:
                self._job = None  # the next lease starts another keeper, which goes on with these
                self._schedule.put_back(batch or (), self._runtime.now())
            raise

    def _next_batch(self) -> list[Entry] | None:
        with self._mutex:
            assert self._bell is not None
            self._bell.clear()
            self._napping_until = -math.inf
            if self._stopped or self._schedule.next_at() == math.inf:
                self._job, self._shortest_ttl = None, math.inf
                return None
            batch = self._schedule.take_due(self._runtime.now())
            if not batch:
                self._napping_until = self._schedule.next_at()
            return batch

    def _tell_dropped(self) -> None:
        """Say which leases the program has dropped without giving them up: they are not renewed any more."""
        gone, self._schedule.gone = self._schedule.gone, []
        for ref in gone:
            if self._dropped(ref):
                logger().warning(
                    "a lease on %r was dropped without being released: it ends by its ttl; keep the lease that "
                    "acquire() returns, or use a with block",
                    ref.name,
                )

    async def _nap(self) -> None:
        assert self._bell is not None
        await self._bell.wait(min(max(0.0, self._napping_until - self._runtime.now()), LONGEST_NAP))

    async def _serve(self, batch: Sequence[Entry]) -> None:
        by_ttl: dict[float, list[Lease]] = {}
        for lease in _leases(batch):
            if lease.lost._can_happen:
                by_ttl.setdefault(lease.ttl, []).append(lease)
        for ttl in sorted(by_ttl):  # one request for each ttl: a short one must not cut the time of a long one
            await self._renew_and_go_on(by_ttl[ttl])
        await self._give_back_all([entry for entry in batch if isinstance(entry, Return)])

    async def _renew_and_go_on(self, leases: Sequence[Lease]) -> None:
        try:
            await self._renew(leases)
        except StoreUnavailable:
            pass  # each lease knows how often it failed, and its deadline
        except Exception:  # noqa: BLE001 - a broken store must not end the keeper: the leases then expire
            logger().exception("a renewal failed in a way that no store should")
        for lease in leases:
            if lease.lost._can_happen:
                self._add(self._renewal_at(lease.ttl, lease._failures), lease._ref)

    async def _renew(self, leases: Sequence[Lease]) -> None:
        sent_at = self._runtime.now()
        claims = [
            lease._claim._replace(ttl=lease.lost._left_to_hold(sent_at, lease.ttl), longest=lease.ttl)
            for lease in leases
        ]
        answers: Sequence[LossReason | StoreUnavailable | None]
        try:
            answers = await self._store.renew(claims, self._budget(leases, sent_at))
        except PartlyRenewed as partly:
            answers = partly.answers
        except Exception:
            for lease in leases:
                lease._failures += 1
            raise
        for lease, claim, reason in zip(leases, claims, answers, strict=True):
            if isinstance(reason, StoreUnavailable):
                lease._failures += 1
            elif reason is not None:
                lease.lost._happen(reason)
            elif lease.lost._extend(sent_at, claim.ttl):
                lease._failures = 0
            elif lease.lost and not lease._handed_over:  # confirmed too late: the holder has been told
                self.give_back(lease.name, lease.token, lease.ttl)

    def _budget(self, leases: Sequence[Lease], now: float) -> float:
        """Seconds for one renewal: it ends before the first of its leases does, leaves room for another try, and
        does not keep the shortest of all leases waiting past its own time."""
        own = min(min(lease.lost._deadline - now, lease.ttl * RENEW_AT) for lease in leases)
        return max(0.01, min(own, LONGEST_STEP, max(self._shortest_ttl * RENEW_AT, LEAST_BUDGET)))

    async def _give_back_all(self, returns: Sequence[Return]) -> None:
        reachable = True
        for entry in returns:
            if reachable:
                reachable = await self._return(entry, RETURN_BUDGET)
            if not entry.done and self._runtime.now() < entry.until:
                entry.failures += 1
                self._add(self._runtime.now() + retry_after(entry.failures, 2.0), entry)

    async def _give_back_the_rest(self, deadline: Deadline) -> None:
        failures = 0
        while rest := [entry for entry in self._schedule if isinstance(entry, Return) and not entry.done]:
            if failures:
                await self._runtime.sleep(min(deadline.left(), retry_after(failures, 2.0)))
            if deadline.passed():
                return
            failures += 1
            for entry in rest:
                if not await self._return(entry, min(deadline.left(), RETURN_BUDGET)):
                    break

    async def _return(self, entry: Return, within: float) -> bool:
        try:
            await self._store.release(entry.name, entry.token, within)
        except StoreUnavailable:
            return False
        except Exception:  # noqa: BLE001 - see _renew_and_go_on
            logger().exception("a release failed in a way that no store should")
            return False
        entry.done = True
        return True

    def _renewal_at(self, ttl: float, failures: int = 0) -> float:
        now = self._runtime.now()
        if failures:
            return now + retry_after(failures, ttl)
        return now + ttl * RENEW_AT * (1 - JITTER * self._runtime.random())


def _leases(entries: Iterable[Entry]) -> Iterator[Lease]:
    """The leases among *entries* that somebody still refers to."""
    for entry in entries:
        if not isinstance(entry, Return) and (lease := entry()) is not None:
            yield lease
