"""A client: one store, one namespace, one keeper, and the leases held through them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from dibs.core import handover
from dibs.core.budgets import LONGEST_STEP
from dibs.core.checks import (
    Seconds,
    checked_fence,
    checked_length,
    checked_name,
    checked_note,
    checked_options,
    checked_share,
    checked_timeout,
)
from dibs.core.context import Context
from dibs.core.copying import NotCopied
from dibs.core.deferred import check_answers
from dibs.core.election.election import Election, checked_candidate
from dibs.core.election.timings import checked_timings
from dibs.core.idempotent.call import Codec
from dibs.core.idempotent.idempotent import Idempotent
from dibs.core.idempotent.outcome import fingerprint_of, from_json, to_json
from dibs.core.lease import Lease
from dibs.core.lock import Lock
from dibs.core.locked import locked_async
from dibs.core.locks import Locks
from dibs.core.once.once import KEEP, Once
from dibs.core.once.options import checked_once
from dibs.errors import LeaseLost, Misuse, NotSupported
from dibs.holder import Holder, LockState, Record
from dibs.runtime import Runtime
from dibs.share import SHARED
from dibs.stores.guarantees import Ability, Guarantees
from dibs.stores.record_store import record_store
from dibs.stores.store import Claim, Store

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TTL = 30.0
"""Seconds: long enough for two retries of a renewal through a short outage, short enough to wait for after a crash."""

DAY = 86_400.0
"""Seconds for which the result of an idempotent call is kept by default; whoever retries has given up by then."""

MOST_RECORDS = 10_000
"""Records in one list: all are in memory at once."""

DEFAULT_TERM = 15.0
"""Seconds: a leader that died is replaced after so much, and one that is cut off for two thirds of it stops."""


class Client(NotCopied):
    """A connection to one store, made by `connect`. It returns at once; the first step connects.

    A client may be shared by the threads of a process, or the tasks of one event loop. After a fork the child may
    go on using it; the leases stay with the parent.
    """

    _instead = "connect one in each process"

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._context = Context(store, runtime)

    # --- what users call -----------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        """The store, which takes single steps."""
        return self._context.store

    @property
    def _runtime(self) -> Runtime:
        """The clock, the threads or tasks, and the events that this client uses."""
        return self._context.runtime

    @property
    def guarantees(self) -> Guarantees:
        """What the store promises."""
        return self._store.guarantees

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        shared: bool = False,
    ) -> Lock:
        """Describe the lock called *name*; nothing is sent yet.

        *ttl* is the length of a lease: how long the lock stays taken after its holder died or was cut off. It is
        renewed every third of it for as long as it is held, at most *max_hold* seconds in all (None: no bound).
        *timeout* is how long to wait for the lock: None waits for ever, 0 tries once. *note* is shown to whoever
        finds it taken. *on_lost*, for async code: ``"cancel"`` cancels the body of ``async with`` when the lease is
        lost, ``"flag"`` only sets `Lease.lost`. Lengths are seconds or timedeltas.

        *shared*: others may hold it at the same time if they, too, ask for it shared, and nobody else may. Who asks
        for all of it waits until they are gone, and whoever comes later waits behind. `NotSupported` if the store has
        no shared locks.
        """
        options = checked_options(name, ttl, timeout, note, max_hold, on_lost, *self._limits())
        return Lock(self._context, *options, SHARED if self._can(shared, Ability.SHARED) else None)

    def semaphore(
        self,
        name: str,
        slots: int,
        *,
        weight: int = 1,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
    ) -> Lock:
        """Describe the semaphore called *name*: holders together have at most so many *slots*, and this one *weight*.

        Each holder has a lease of its own, so the slots of one that died come back after its *ttl*. Whoever asks has
        to name the same number of slots as those who hold it just then, else it is `Misuse`. The other options are
        those of `lock`, and `lock` itself takes all the slots. `NotSupported` if the store has no semaphores.
        """
        options = checked_options(name, ttl, timeout, note, max_hold, on_lost, *self._limits())
        share = checked_share(slots, weight)
        self._can(True, Ability.SEMAPHORE)
        return Lock(self._context, *options, share)

    def all(
        self,
        *locks: str | Lock,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
    ) -> Locks:
        """Describe several locks that are taken together, all or none; nothing is sent yet.

        Each is a name or a lock of this client; the options are for the names, as in `lock`, and *timeout* is for the
        whole. They are taken in the order of their names, whatever order they are given in, so two who want the same
        ones never wait for each other.
        """
        made = [
            self.lock(lock, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost)
            if isinstance(lock, str)
            else lock
            for lock in locks
        ]
        return Locks(self._context, made, checked_timeout(timeout))

    def locked(
        self,
        name: str,
        *,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = None,
        note: str = "",
        max_hold: Seconds | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel",
        shared: bool = False,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """Decorate a function so that each call runs under a lock, named from its arguments: ``"report:{day}"``.

        Text, whole numbers, UUIDs and dates stand in a name as they are; for an object write what identifies it, as in
        ``{invoice.id}``, and of a float which digits count, ``{size:.2f}``. A call with anything else is `Misuse`.
        The other options are those of `lock`. A function that has a keyword-only parameter called *lease* gets the
        lease in it, so that it can pass ``lease.fence`` on.
        """

        def make(made_name: str) -> Lock:
            return self.lock(
                made_name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
            )

        make(name)  # refuse bad options where the function is written, not when it is called
        return functools.partial(locked_async, make, name)

    def election(
        self,
        name: str,
        *,
        ttl: Seconds = DEFAULT_TERM,
        candidate: str = "",
        renew_deadline: Seconds | None = None,
        retry: Seconds | None = None,
        on_stuck: Literal["log", "exit"] = "log",
        stuck_after: Seconds | None = None,
    ) -> Election:
        """Stand as *candidate* (by default host and pid) for leader of *name*; nothing is sent yet.

        The place is the lock called *name*, with leases of *ttl*. When no renewal has succeeded for *renew_deadline*
        (by default two thirds of the ttl) the work is told to stop, while its lease is still valid. After a term, or
        a failure of the store, a candidate pauses for about *retry* seconds (by default 2 s, or ttl / 7.5 if that is
        less). It must be ttl > renew_deadline > retry.

        Work that goes on *stuck_after* seconds after it was told to stop (by default nine tenths of what is left of
        its lease then) is stuck: ``on_stuck="log"`` logs an error and keeps renewing, so that nobody else leads beside
        it; ``"exit"`` ends this process.
        """
        timings = checked_timings(ttl, renew_deadline, retry, stuck_after, *self._limits())
        return Election(self._context, checked_name(name), timings, *checked_candidate(candidate, on_stuck))

    def idempotent(
        self,
        key: str,
        *,
        fingerprint: Any = None,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = 0,
        keep: Seconds = DAY,
        note: str = "",
        on_lost: Literal["cancel", "flag"] = "cancel",
        dump: Callable[[Any], bytes] = to_json,
        load: Callable[[bytes], Any] = from_json,
    ) -> Idempotent:
        """Describe a call that is done once for each *key* and then replayed; nothing is sent yet.

        Use it as a context manager, or as a decorator whose key is made of the arguments: ``"charge:{invoice}"``.
        *fingerprint* tells what the call is about: text, bytes, or anything JSON can say; another one under the same
        key is `KeyReused`. *keep* is for how long the result is kept; after that the key is new again. *timeout* is
        how long to wait for somebody who is at it: 0 is `NotAcquired` at once, None waits for its result. The work is
        done under a lease of *ttl* on the lock *key*, with *note* and *on_lost* as in `lock`. *dump* and *load* make
        bytes of results and results of bytes: JSON by default, which makes lists of tuples.
        """
        record_store(self._store)
        if (dump, load) != (to_json, from_json):
            check_answers(dump=dump, load=load)
        lock = self.lock(key, ttl=ttl, timeout=timeout, note=note, on_lost=on_lost)
        fingerprint_of(fingerprint)  # refuse a bad one here, before anything is done
        return Idempotent(self._context, lock, fingerprint, checked_length(keep, "keep"), Codec(dump, load))

    def once(
        self,
        name: str,
        *,
        slot: str | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str = "UTC",
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds | None = 0,
        retries: int = 0,
        min_hold: Seconds | None = None,
        late: Seconds | None = None,
        keep: Seconds = KEEP,
        note: str = "",
        on_lost: Literal["cancel", "flag"] = "cancel",
    ) -> Once:
        """Describe what is to be run once per slot of a schedule, on one of all machines; nothing is sent yet.

        The slot is what it is by the store's clock: of a line for *cron* in the time zone *tz*, of one *every* so many
        seconds, or the *slot* that you name. It runs under the lock *name*, so two slots never run at once, and how
        it ended is remembered for *keep* (at least until the next slot).

        One that failed or crashed is started again by a later call, *retries* times. A call that finds the name held
        waits at most *timeout*: 0 skips at once, None stands by until the run has ended, to take over if it crashes. A
        slot may be begun until the next one begins, or for *late* seconds; *min_hold* keeps the next start away for so
        long. *ttl*, *note* and *on_lost* are those of `lock`.
        """
        from dibs.core.once.slots import schedule_of  # noqa: PLC0415 - time zones cost 5 ms at start

        schedule = schedule_of(slot, cron, every, tz)
        lengths = (min_hold, late, keep)
        options = checked_once(name, schedule, ttl, timeout, retries, *lengths, note, on_lost, *self._limits())
        record_store(self._store)
        return Once(self._context, options)

    async def resume(self, text: str) -> Lease:
        """Take over the lease that another process wrote with `Lease.to_str`, and keep it here from now on.

        Asks the store first: `LeaseLost` if that token no longer holds it. `NotSupported`, before anything is sent,
        on a store whose locks belong to one session.
        """
        return await self._take_over(text)

    async def _take_over(self, text: str, taken: list[Lease] | None = None) -> Lease:
        """Do `resume`; the lease is in *taken* as soon as it exists, as with `Lock._take`."""
        claim, note = handover.from_text(text)
        self._can(True, Ability.HANDOVER)
        self._context.check_usable(claim.name if claim.share is None else "")
        sent_at = self._runtime.now()
        await self._renew(claim)
        lease = Lease(self._context, claim, sent_at, note, None, "cancel")
        lease._handed_over = True
        if taken is not None:
            taken.append(lease)
        try:
            await self._context.closing.do(self._store.attach, claim, note, self._context.step_budget(claim.ttl))
            self._context.keep(lease)
        except BaseException as error:
            if isinstance(error, Exception):
                lease._end("left to the process that detached it")
            else:  # Ctrl-C, or a cancel: the store may count it as ours, and renew it with the rest
                lease._leave()
            raise
        return lease

    async def renew(self, text: str) -> None:
        """Extend the lease that another process wrote with `Lease.to_str` by its ttl, and leave it to that process.

        `LeaseLost` if that token no longer holds it; `NotSupported` as with `resume`.
        """
        claim, _ = handover.from_text(text)
        self._can(True, Ability.HANDOVER)
        self._context.check_usable()
        await self._renew(claim)

    async def holders(self, prefix: str = "") -> list[Holder]:
        """List who holds the locks whose names begin with *prefix*."""
        self._context.check_usable()
        if prefix != "":
            checked_name(prefix, "prefix")
        return await self._context.closing.do(self._store.holders, prefix, LONGEST_STEP)

    async def show(self, name: str) -> LockState:
        """Tell all that the store knows of *name*: holder, last fence, who waits, the last eviction."""
        self._context.check_usable()
        return await self._context.closing.do(self._store.show, checked_name(name), LONGEST_STEP)

    async def evict(self, name: str, *, fence: int, reason: str = "") -> bool:
        """Break the lock *name* if the grant with *fence* still holds it; tell whether it did.

        The holder is told at its next renewal, up to a third of its ttl later, and may write until then: only a
        guard that checks the fence refuses it. *reason* is kept for `show`.
        """
        self._context.check_usable()
        return await self._context.closing.do(
            self._store.evict, checked_name(name), checked_fence(fence), checked_note(reason), LONGEST_STEP
        )

    async def record(self, name: str) -> Record | None:
        """Return what the last holder left under *name*, if it left anything and that is not over."""
        self._context.check_usable()
        return await self._context.closing.do(record_store(self._store).record, checked_name(name), LONGEST_STEP)

    async def records(self, prefix: str = "", *, most: int = 100) -> list[Record]:
        """List the records of names that begin with *prefix*, the latest first, and not more than *most*."""
        self._context.check_usable()
        store = record_store(self._store)
        if isinstance(most, bool) or not isinstance(most, int) or not 0 < most <= MOST_RECORDS:
            raise Misuse(f"most={most!r}: it is a number of records from 1 to {MOST_RECORDS}")
        return await self._context.closing.do(
            store.records, checked_name(prefix, "prefix") if prefix != "" else "", most, LONGEST_STEP
        )

    async def forget_record(self, name: str, *, fence: int) -> bool:
        """Remove the record of *name* that was written under *fence*, if it is there; tell whether it was.

        What it stood for may then be done again.
        """
        self._context.check_usable()
        store = record_store(self._store)
        return await self._context.closing.do(store.forget, checked_name(name), checked_fence(fence), LONGEST_STEP)

    async def close(self) -> None:
        """Give back all that is held, within two seconds, and close the connections.

        Steps that other threads or tasks are in the middle of either end or are given back, and raise `Misuse` there.
        If a signal handler calls this, the step that it interrupted does the rest when it ends.
        """
        await self._context.close()

    def inheritable(self) -> tuple[int, ...]:
        """File descriptors that keep the locks of this process taken as long as a child that inherits them lives.

        Pass them to a child that goes on with the work (``pass_fds``), so that the death of this process does not
        free the lock under it. Empty for stores where only the ttl frees the lock of a dead process. A *preexec_fn*
        runs after a fork has closed them in the child: give it copies made with `os.dup`.
        """
        if self._runtime.pid() != self._context.pid:
            return ()  # in a forked child: they are the parent's
        return self._store.inheritable()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def __repr__(self) -> str:
        return repr(self._context)

    def _can(self, wanted: bool, ability: Ability) -> bool:
        """Whether it is *wanted*; refused at once where the store cannot do it."""
        why = self._store.guarantees.cannot.get(ability) if wanted else None
        if why is not None:
            raise NotSupported(f"{self._store.guarantees.name} has no {ability}: {why}")
        return wanted

    async def _renew(self, claim: Claim) -> None:
        [reason] = await self._context.closing.do(
            self._store.renew, [claim._replace(longest=claim.ttl)], self._context.step_budget(claim.ttl)
        )
        if reason is not None:
            raise LeaseLost(claim.name, claim.fence, reason)

    def _limits(self) -> tuple[float, float]:
        """The shortest and the longest ttl."""
        return self._store.shortest_ttl, self._store.longest_ttl
