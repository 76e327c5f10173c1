"""A client: one store, one namespace, one keeper, and the leases held through them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, NoReturn, ParamSpec, Self, TypeVar

from dibs.core import handover
from dibs.core.acquiring import LONGEST_STEP
from dibs.core.call import Codec
from dibs.core.checks import (
    Seconds,
    checked_fence,
    checked_length,
    checked_name,
    checked_note,
    checked_options,
    checked_part,
    checked_timeout,
)
from dibs.core.election import Election, checked_candidate
from dibs.core.entered import Entered
from dibs.core.held import Held
from dibs.core.idempotent import Idempotent
from dibs.core.keeper import RETURN_BUDGET, Keeper
from dibs.core.lease import Lease
from dibs.core.lock import Lock
from dibs.core.locked import locked_async
from dibs.core.once import KEEP, Once, checked_terms
from dibs.core.outcome import fingerprint_of, from_json, to_json
from dibs.core.recording import check_records
from dibs.core.several import Locks
from dibs.core.timings import checked_timings
from dibs.core.turns import Turns
from dibs.errors import LeaseLost, LossReason, Misuse, NotSupported
from dibs.holder import Holder, LockState, Record
from dibs.part import SHARED, Part, part_of
from dibs.runtime import Runtime
from dibs.stores.guarantees import Ability, Guarantees
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

CLOSING = 2.0
"""Seconds that closing may take."""


class Client:
    """A connection to one store, made by `connect`. It returns at once; the first step connects.

    A client may be shared by the threads of a process, or the tasks of one event loop. After a fork the child may
    go on using it; the leases stay with the parent.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.store, self.runtime = store, runtime
        self.entered = Entered()
        self._closed = False
        self._fresh()
        runtime.after_fork(self._forked)
        runtime.at_exit(self._at_exit)
        lost = weakref.WeakMethod(self._lost)
        store.on_loss(lambda *loss: call(*loss) if (call := lost()) is not None else None)

    def _fresh(self) -> None:
        self.pid = self.runtime.pid()
        self.mutex = self.runtime.mutex()
        self._held = Held(self.mutex)
        self.keeper = Keeper(self.runtime, self.store, self.mutex, self._held.drop)
        self.turns = Turns(self.runtime, self.mutex)

    # --- what users call -----------------------------------------------------------------------------------

    @property
    def guarantees(self) -> Guarantees:
        """What the store promises."""
        return self.store.guarantees

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
        options = checked_options(name, ttl, timeout, note, max_hold, on_lost, self.store.shortest_ttl)
        return Lock(self, *options, SHARED if self._can(shared, Ability.SHARED) else None)

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
        options = checked_options(name, ttl, timeout, note, max_hold, on_lost, self.store.shortest_ttl)
        part = checked_part(slots, weight)
        self._can(True, Ability.SEMAPHORE)
        return Lock(self, *options, part)

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
        return Locks(self, made, checked_timeout(timeout))

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
        timings = checked_timings(ttl, renew_deadline, retry, stuck_after, self.store.shortest_ttl)
        return Election(self, checked_name(name), timings, *checked_candidate(candidate, on_stuck))

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
        check_records(self.store)
        lock = self.lock(key, ttl=ttl, timeout=timeout, note=note, on_lost=on_lost)
        fingerprint_of(fingerprint)  # refuse a bad one here, before anything is done
        return Idempotent(self, lock, fingerprint, checked_length(keep, "keep"), Codec(dump, load))

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
        from dibs.core.slots import schedule_of  # noqa: PLC0415 - time zones cost 5 ms at start

        schedule = schedule_of(slot, cron, every, tz)
        shortest, lengths = self.store.shortest_ttl, (min_hold, late, keep)
        terms = checked_terms(name, schedule, ttl, timeout, retries, *lengths, note, on_lost, shortest)
        check_records(self.store)
        return Once(self, terms)

    async def resume(self, text: str) -> Lease:
        """Take over the lease that another process wrote with `Lease.to_str`, and keep it here from now on.

        Asks the store first: `LeaseLost` if it is not that token's any more.
        """
        claim, note = handover.from_text(text)
        self.enter(claim.name if part_of(claim.token) is None else "")
        sent_at = self.runtime.now()
        await self._renew(claim)
        await self.store.attach(claim, note, self.step_budget(claim.ttl))
        lease = Lease(self, claim, sent_at, note, None, "cancel")
        self.keep(lease)
        return lease

    async def renew(self, text: str) -> None:
        """Extend the lease that another process wrote with `Lease.to_str` by its ttl, and leave it to that process.

        `LeaseLost` if it is not that token's any more.
        """
        claim, _ = handover.from_text(text)
        self.enter()
        await self._renew(claim)

    async def holders(self, prefix: str = "") -> list[Holder]:
        """List who holds the locks whose names begin with *prefix*."""
        self.enter()
        if prefix != "":
            checked_name(prefix, "prefix")
        return await self.store.holders(prefix, LONGEST_STEP)

    async def show(self, name: str) -> LockState:
        """Tell all that the store knows of *name*: holder, last fence, who waits, the last eviction."""
        self.enter()
        return await self.store.show(checked_name(name), LONGEST_STEP)

    async def evict(self, name: str, *, fence: int, reason: str = "") -> bool:
        """Break the lock *name* if the grant with *fence* still holds it; tell whether it did.

        The holder is told at its next renewal, up to a third of its ttl later, and may write until then: only a
        guard that checks the fence refuses it. *reason* is kept for `show`.
        """
        self.enter()
        return await self.store.evict(checked_name(name), checked_fence(fence), checked_note(reason), LONGEST_STEP)

    async def record(self, name: str) -> Record | None:
        """Return what the last holder left under *name*, if it left anything and that is not over."""
        self.enter()
        check_records(self.store)
        return await self.store.record(checked_name(name), LONGEST_STEP)

    async def records(self, prefix: str = "", *, most: int = 100) -> list[Record]:
        """List the records of names that begin with *prefix*, the latest first, and not more than *most*."""
        self.enter()
        check_records(self.store)
        if isinstance(most, bool) or not isinstance(most, int) or not 0 < most <= MOST_RECORDS:
            raise Misuse(f"most={most!r}: it is a number of records from 1 to {MOST_RECORDS}")
        return await self.store.records(checked_name(prefix, "prefix") if prefix != "" else "", most, LONGEST_STEP)

    async def forget_record(self, name: str, *, fence: int) -> bool:
        """Remove the record of *name* that was written under *fence*, if it is there; tell whether it was.

        What it stood for may then be done again.
        """
        self.enter()
        check_records(self.store)
        return await self.store.forget(checked_name(name), checked_fence(fence), LONGEST_STEP)

    async def reseed(self, floor: int) -> None:
        """Let all nodes of a Redlock vote from now on, and give out no fence that is not above *floor*.

        For the day on which a majority of them lost its memory, so that no lock is granted any more: *floor* is the
        highest fence that any guard has seen. All nodes have to be there. Whoever held a lock until then may still
        believe in it, beside the next one: only a guard that checks the fence tells them apart. `NotSupported` on
        other stores.
        """
        self.enter()
        await self.store.reseed(checked_fence(floor, "floor"), LONGEST_STEP)

    async def close(self) -> None:
        """Give back all that is held, within two seconds, and close the connections."""
        if self._closed:
            return
        self.runtime.enter()  # from another event loop it would wait for what only the first can do
        self._closed = True
        await self.keeper.stop(self._held.leases(), CLOSING)
        await self.store.close()

    def inheritable(self) -> tuple[int, ...]:
        """File descriptors that keep the locks of this process taken as long as a child that inherits them lives.

        Pass them to a child that goes on with the work (``pass_fds``), so that the death of this process does not
        free the lock under it. Empty for stores where only the ttl frees the lock of a dead process. A *preexec_fn*
        runs after a fork has closed them in the child: give it copies made with `os.dup`.
        """
        return self.store.inheritable()

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise Misuse("a client cannot be pickled or copied: connect one in each process")

    def __repr__(self) -> str:
        return f"<Client of {self.store!r}{' closed' if self._closed else ''}>"

    # --- for locks and leases ------------------------------------------------------------------------------

    def enter(self, name: str = "", part: Part | None = None) -> None:
        """Refuse what cannot work from here: a closed client, another event loop, a lock we already hold."""
        self.runtime.enter()
        self._refuse_closed()
        self._held.refuse(name, part, self.runtime.current)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Misuse("this client is closed; connect a new one")

    def keep(self, lease: Lease) -> None:
        """From now on *lease* is held here; `Misuse` if the client was closed meanwhile: nobody would renew it."""
        self._held.add(lease.ref)
        self.keeper.keep(lease)
        self._refuse_closed()  # only now: closing gives up what is held, or we see that it has begun

    def forget(self, lease: Lease) -> bool:
        """From now on *lease* is not held here; tell whether it was."""
        known = self._held.drop(lease.ref)
        if known:
            self.keeper.drop()
        return known

    async def give_back(self, name: str, token: str, ttl: float, *, within: float = RETURN_BUDGET) -> None:
        """Give back whatever *token* may have, now, shielded from a cancel; else the keeper does it.

        This is how everything that was sent and not confirmed ends.
        """
        delivered = False
        try:
            delivered = await self.runtime.shielded(self._try_release(name, token, within))
        finally:
            if not delivered:
                self.keeper.give_back(name, token, ttl)

    def _can(self, wanted: bool, ability: Ability) -> bool:
        """Whether it is *wanted*; refused at once where the store cannot do it."""
        why = self.store.guarantees.cannot.get(ability) if wanted else None
        if why is not None:
            raise NotSupported(f"{self.store.guarantees.name} has no {ability}: {why}")
        return wanted

    async def _try_release(self, name: str, token: str, within: float) -> bool:
        try:
            await self.store.release(name, token, within)
        except Exception:  # noqa: BLE001 - it must not hide why we leave; the keeper tries again and says what failed
            return False
        return True

    async def _renew(self, claim: Claim) -> None:
        [reason] = await self.store.renew([claim], self.step_budget(claim.ttl))
        if reason is not None:
            raise LeaseLost(claim.name, claim.fence, reason)

    def step_budget(self, ttl: float) -> float:
        """Seconds for one request about a lease of *ttl*."""
        return min(LONGEST_STEP, ttl / 2)

    def _lost(self, name: str, token: str, reason: LossReason) -> None:
        """The store says that a grant is over."""
        lease = self._held.get(name, token)
        if lease is not None:
            lease.lost.happen(reason)

    def _forked(self) -> None:
        self.store.forked()
        self._fresh()

    def _at_exit(self) -> None:
        from dibs.runtime import run  # noqa: PLC0415 - only blocking runtimes call this

        if not self._closed:
            run(self.close())
