"""A lock: what is locked and how. It holds no state, so it can be shared, kept and thrown away freely."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dibs.core.acquiring import Acquiring, Recorded
from dibs.core.checks import Seconds, checked_name, checked_timeout
from dibs.core.deadline import Deadline
from dibs.core.guarded import Guard, Guarded
from dibs.core.lease import Lease
from dibs.core.record import Recalling
from dibs.errors import Misuse
from dibs.holder import Record
from dibs.share import Share
from dibs.stores.store import Ask, Busy, Claim, Grant

if TYPE_CHECKING:
    from dibs.core.context import Context


class _AsTheLockSays:
    """The default of *timeout* where a lock has one of its own."""

    def __repr__(self) -> str:
        return "<the lock's own timeout>"


AS_THE_LOCK_SAYS = _AsTheLockSays()


class Lock:
    """The description of a lock, made by `Client.lock`. Acquiring it gives a `Lease`, which has all the state.

    As a context manager it acquires on entry, waiting as long as its *timeout*, and gives back on exit.
    """

    __slots__ = ("_context", "_max_hold", "_note", "_on_lost", "_share", "_timeout", "_ttl", "name")

    def __init__(
        self,
        context: Context,
        name: str,
        ttl: float,
        timeout: float | None,
        note: str,
        max_hold: float | None,
        on_lost: str,
        share: Share | None = None,
    ) -> None:
        self._context = context
        self.name, self._ttl, self._timeout = name, ttl, timeout
        self._note, self._max_hold, self._on_lost, self._share = note, max_hold, on_lost, share

    async def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Lease:
        """Wait until the lock is ours, at most *timeout* seconds: None waits for ever, 0 tries once.

        Raises `NotAcquired` with the holder when the time is up, `StoreUnavailable` if the store cannot be asked,
        and `Misuse` at once if this task or thread already holds the lock through this client.
        """
        return await self._take(timeout)

    async def try_acquire(self) -> Lease | None:
        """Take the lock if it is free now, else return None. Raises only if the store is broken."""
        return await self._try_take()

    def _renamed(self, name: str) -> Lock:
        """Describe the lock called *name*, with the same options."""
        options = self._ttl, self._timeout, self._note, self._max_hold, self._on_lost, self._share
        return Lock(self._context, checked_name(name), *options)

    def guarded(self, guard: Guard) -> Guarded:
        """Acquire, and show the new fence to *guard*, in one ``with``; see `dibs.guards`.

        From then on the guard refuses every holder before us, also one that goes on after a pause. At the end of the
        block it is told that no write of ours comes any more, and the lock is given back.

        Not for a shared lock or a semaphore: a guard refuses all holders but the newest.
        """
        if self._share is not None:
            raise Misuse(
                f"a guard lets only the newest holder write, and {self.name!r} is {self._share.shown}: several hold it "
                "together; guard an exclusive lock"
            )
        return Guarded(self, guard)

    # Each of these puts the lease into *taken* as soon as it exists. Blocking code looks there when Ctrl-C comes before
    # it has the lease itself, as it can in any call in between.

    async def _take(
        self,
        timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS,
        taken: list[Lease] | None = None,
        deadline: Deadline | None = None,
    ) -> Lease:
        """Do `acquire`, with a *deadline* that somebody may bring forward."""
        wait = self._timeout if isinstance(timeout, _AsTheLockSays) else checked_timeout(timeout)
        self._context.check_usable(self.name, self._share)
        call = Acquiring(self._context, self._ask(), wait, deadline)
        try:
            self._context.closing.begin(call)
            if wait == 0 or not (self.name in self._context.waiters or self._context.store.queue_at_once(self.name)):
                answer = await call.once()
                if not isinstance(answer, Busy):
                    return self._leased(call.ask, *answer, taken)
                if wait == 0:
                    raise call.refused()
            answer = await call.wait()
            return self._leased(call.ask, *answer, taken)  # only now: it may have gone on under a new token
        except BaseException:
            await call.undo()
            raise
        finally:
            if self._context.closing.ends(call):
                await self._context.closing.finish()

    async def _try_take(self, taken: list[Lease] | None = None) -> Lease | None:
        """Do `try_acquire`."""
        self._context.check_usable(self.name, self._share)
        call = Acquiring(self._context, self._ask(), 0)
        try:
            self._context.closing.begin(call)
            answer = await call.once()
            return None if isinstance(answer, Busy) else self._leased(call.ask, *answer, taken)
        except BaseException:
            await call.undo()
            raise
        finally:
            if self._context.closing.ends(call):
                await self._context.closing.finish()

    def _noted(self, note: str) -> Lock:
        """The same lock with another *note*."""
        if note == self._note:
            return self
        return Lock(
            self._context, self.name, self._ttl, self._timeout, note, self._max_hold, self._on_lost, self._share
        )

    async def _take_or_recall(
        self, after: int, timeout: float | None, taken: list[Lease] | None = None
    ) -> Lease | Record:
        """Do what `acquire` does, unless the name has a record of a grant after the fence *after*: return that."""
        self._context.check_usable(self.name)
        call = Recalling(self._context, self._ask(), timeout, after)
        try:
            self._context.closing.begin(call)
            answer = await call.once()  # a record answers at once, however many wait
            if isinstance(answer, Busy):
                if timeout == 0:
                    raise call.refused()
                answer = await call.wait()
            return self._leased(call.ask, *answer, taken)
        except Recorded as recorded:
            return recorded.record
        except BaseException:
            await call.undo()
            raise
        finally:
            if self._context.closing.ends(call):
                await self._context.closing.finish()

    def __aenter__(self) -> Coroutine[Any, Any, Lease]:
        """Acquire, and let a loss cancel the body (async code, unless ``on_lost="flag"``)."""
        return self._open()

    async def _open(self, taken: list[Lease] | None = None) -> Lease:
        """Begin a block."""
        self._refuse_second_block()
        lease = await self._take(taken=taken)
        self._context.open_blocks.push(lease)
        lease._arm()
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back, as `Lease` does."""
        lease = self._leaving()
        if lease is None:
            raise Misuse(f"the block of lock {self.name!r} is left without having been entered by this client")
        try:
            await lease.__aexit__(kind, exc, trace)
        except BaseException:
            lease._leave()  # Ctrl-C may have come before the release was begun
            raise
        finally:
            self._context.open_blocks.remove(lease)  # not before: until now only the block knows its lease

    def _undo(self, taken: list[Lease]) -> None:
        """A block was not begun, because of Ctrl-C, although all this was granted for it: give it back."""
        self._context.undo(taken)

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when a block was about to end: give up what it held.

        Only the block knows its lease, and it will not come back to it: it would be renewed for ever.
        """
        if not isinstance(error, Misuse):  # that is a block inside another, which goes on
            for lease in self._context.open_blocks.drop(self.name, self._context.runtime.current()):
                lease._leave()

    def _leaving(self) -> Lease | None:
        """The lease of the block that is being left."""
        return self._context.open_blocks.find(self.name, self._context.runtime.current())

    def _refuse_second_block(self) -> None:
        """Refuse a block inside another on the same name: when both end, nobody can tell whose lease is whose."""
        if self._share is not None and self._context.open_blocks.has_share(self.name, self._context.runtime.current()):
            raise Misuse(
                f"this task or thread is in a block on {self.name!r} already: take more of it at once (weight=), or "
                "use acquire() and release()"
            )

    def __repr__(self) -> str:
        share = f" {self._share.shown}" if self._share is not None else ""
        return f"<Lock {self.name!r}{share} ttl={self._ttl:g} timeout={self._timeout}>"

    def _ask(self) -> Ask:
        token = self._context.runtime.token()
        return Ask(self.name, token if self._share is None else self._share.token(token), self._ttl, self._note, False)

    def _leased(self, ask: Ask, grant: Grant, sent_at: float, taken: list[Lease] | None) -> Lease:
        claim = Claim(ask.name, ask.token, grant.fence, grant.ttl)
        lease = Lease(self._context, claim, sent_at, self._note, self._max_hold, self._on_lost)
        try:
            if taken is not None:
                taken.append(lease)
            self._context.keep(lease)
        except BaseException:  # Ctrl-C, or no thread can be started to renew it
            lease._end("released")  # the traceback may be kept, and with it what looks held and refuses the next
            raise
        return lease
