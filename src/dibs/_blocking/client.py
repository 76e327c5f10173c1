"""The blocking face of a client, which makes all the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from dibs._blocking.election import Election
from dibs._blocking.faces import faces
from dibs._blocking.idempotent import Idempotent
from dibs._blocking.lease import Lease
from dibs._blocking.lock import Lock
from dibs._blocking.locks import Locks
from dibs._blocking.once import Once
from dibs.core import client as _client
from dibs.core import lease as _lease
from dibs.core.checks import Seconds
from dibs.core.client import DAY, DEFAULT_TERM, DEFAULT_TTL
from dibs.core.idempotent.outcome import from_json, to_json
from dibs.core.lease import leave
from dibs.core.locked import locked_blocking
from dibs.core.once.once import KEEP
from dibs.holder import Holder, LockState, Record
from dibs.runtime import run
from dibs.stores.guarantees import Guarantees

P = ParamSpec("P")
R = TypeVar("R")


@faces(_client.Client)
class Client:
    """A connection to one store, made by `connect`. It returns at once; the first step connects.

    A client may be shared by the threads of a process, or the tasks of one event loop. After a fork the child may
    go on using it; the leases stay with the parent.
    """

    def __init__(self, core: _client.Client) -> None:
        self._core = core

    @property
    def guarantees(self) -> Guarantees:
        """What the store promises."""
        return self._core.guarantees

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
        return Lock(
            self._core.lock(
                name, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost, shared=shared
            )
        )

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
        return Lock(
            self._core.semaphore(
                name, slots, weight=weight, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost
            )
        )

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
        cores = map(_core_of, locks)
        return Locks(self._core.all(*cores, ttl=ttl, timeout=timeout, note=note, max_hold=max_hold, on_lost=on_lost))

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
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
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

        make(name)
        return functools.partial(locked_blocking, make, name)

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
        return Election(
            self._core.election(
                name,
                ttl=ttl,
                candidate=candidate,
                renew_deadline=renew_deadline,
                retry=retry,
                on_stuck=on_stuck,
                stuck_after=stuck_after,
            )
        )

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
        return Idempotent(
            self._core.idempotent(
                key,
                fingerprint=fingerprint,
                ttl=ttl,
                timeout=timeout,
                keep=keep,
                note=note,
                on_lost=on_lost,
                dump=dump,
                load=load,
            )
        )

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
        return Once(
            self._core.once(
                name,
                slot=slot,
                cron=cron,
                every=every,
                tz=tz,
                ttl=ttl,
                timeout=timeout,
                retries=retries,
                min_hold=min_hold,
                late=late,
                keep=keep,
                note=note,
                on_lost=on_lost,
            )
        )

    def resume(self, text: str) -> Lease:
        """Take over the lease that another process wrote with `Lease.to_str`, and keep it here from now on.

        Asks the store first: `LeaseLost` if that token no longer holds it. `NotSupported`, before anything is sent,
        on a store whose locks belong to one session.
        """
        taken: list[_lease.Lease] = []
        try:
            return Lease(run(self._core._take_over(text, taken)))
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C
                leave(taken)
            raise

    def renew(self, text: str) -> None:
        """Extend the lease that another process wrote with `Lease.to_str` by its ttl, and leave it to that process.

        `LeaseLost` if that token no longer holds it; `NotSupported` as with `resume`.
        """
        run(self._core.renew(text))

    def holders(self, prefix: str = "") -> list[Holder]:
        """List who holds the locks whose names begin with *prefix*."""
        return run(self._core.holders(prefix))

    def show(self, name: str) -> LockState:
        """Tell all that the store knows of *name*: holder, last fence, who waits, the last eviction."""
        return run(self._core.show(name))

    def evict(self, name: str, *, fence: int, reason: str = "") -> bool:
        """Break the lock *name* if the grant with *fence* still holds it; tell whether it did.

        The holder is told at its next renewal, up to a third of its ttl later, and may write until then: only a
        guard that checks the fence refuses it. *reason* is kept for `show`.
        """
        return run(self._core.evict(name, fence=fence, reason=reason))

    def record(self, name: str) -> Record | None:
        """Return what the last holder left under *name*, if it left anything and that is not over."""
        return run(self._core.record(name))

    def records(self, prefix: str = "", *, most: int = 100) -> list[Record]:
        """List the records of names that begin with *prefix*, the latest first, and not more than *most*."""
        return run(self._core.records(prefix, most=most))

    def forget_record(self, name: str, *, fence: int) -> bool:
        """Remove the record of *name* that was written under *fence*, if it is there; tell whether it was.

        What it stood for may then be done again.
        """
        return run(self._core.forget_record(name, fence=fence))

    def inheritable(self) -> tuple[int, ...]:
        """File descriptors that keep the locks of this process taken as long as a child that inherits them lives.

        Pass them to a child that goes on with the work (``pass_fds``), so that the death of this process does not
        free the lock under it. Empty for stores where only the ttl frees the lock of a dead process. A *preexec_fn*
        runs after a fork has closed them in the child: give it copies made with `os.dup`.
        """
        return self._core.inheritable()

    def close(self) -> None:
        """Give back all that is held, within two seconds, and close the connections.

        Steps that other threads or tasks are in the middle of either end or are given back, and raise `Misuse` there.
        If a signal handler calls this, the step that it interrupted does the rest when it ends.
        """
        run(self._core.close())

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        return repr(self._core)


def _core_of(lock: Any) -> Any:
    return lock._core if isinstance(lock, Lock) else lock
