"""A lock: what is locked and how. It holds no state, so it can be shared, kept and thrown away freely."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from dibs.core.acquiring import Acquiring, Recorded
from dibs.core.checks import Seconds, checked_timeout
from dibs.core.deadline import Deadline
from dibs.core.guarded import Guard, Guarded
from dibs.core.lease import Lease
from dibs.core.recording import Recalling
from dibs.errors import Misuse
from dibs.holder import Record
from dibs.part import Part
from dibs.stores.store import Ask, Busy, Claim, Grant

if TYPE_CHECKING:
    from dibs.core.client import Client


class _AsTheLockSays:
    """The default of *timeout* where a lock has one of its own."""

    def __repr__(self) -> str:
        return "<the lock's own timeout>"


AS_THE_LOCK_SAYS = _AsTheLockSays()


class Lock:
    """The description of a lock, made by `Client.lock`. Acquiring it gives a `Lease`, which has all the state.

    As a context manager it acquires on entry, waiting as long as its *timeout*, and gives back on exit.
    """

    __slots__ = ("_client", "max_hold", "name", "note", "on_lost", "part", "timeout", "ttl")

    def __init__(
        self,
        client: Client,
        name: str,
        ttl: float,
        timeout: float | None,
        note: str,
        max_hold: float | None,
        on_lost: str,
        part: Part | None = None,
    ) -> None:
        self._client = client
        self.name, self.ttl, self.timeout = name, ttl, timeout
        self.note, self.max_hold, self.on_lost, self.part = note, max_hold, on_lost, part

    async def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Lease:
        """Wait until the lock is ours, at most *timeout* seconds: None waits for ever, 0 tries once.

        Raises `NotAcquired` with the holder when the time is up, `StoreUnavailable` if the store cannot be asked,
        and `Misuse` at once if this task or thread already holds the lock through this client.
        """
        wait = self.timeout if isinstance(timeout, _AsTheLockSays) else checked_timeout(timeout)
        return await self.acquire_by(wait)

    async def acquire_by(self, wait: float | None, deadline: Deadline | None = None) -> Lease:
        """Do `acquire`, with a *deadline* that somebody may bring forward."""
        self._client.enter(self.name, self.part)
        call = Acquiring(self._client, self._ask(), wait, deadline)
        if wait == 0 or not (self.name in self._client.turns or self._client.store.crowded(self.name)):
            answer = await call.once()
            if not isinstance(answer, Busy):
                return self._leased(call.ask, *answer)
            if wait == 0:
                raise call.refused()
        answer = await call.wait()
        return self._leased(call.ask, *answer)  # only now: the call may have gone on under a new token

    async def try_acquire(self) -> Lease | None:
        """Take the lock if it is free now, else return None. Raises only if the store is broken."""
        self._client.enter(self.name, self.part)
        call = Acquiring(self._client, self._ask(), 0)
        answer = await call.once()
        return None if isinstance(answer, Busy) else self._leased(call.ask, *answer)

    def guarded(self, guard: Guard) -> Guarded:
        """Acquire, and show the new fence to *guard*, in one ``with``; see `dibs.guards`.

        From then on the guard refuses every holder before us, also one that goes on after a pause. At the end of the
        block it is told that no write of ours comes any more, and the lock is given back.

        Not for a shared lock or a semaphore: a guard refuses all holders but the newest.
        """
        if self.part is not None:
            raise Misuse(
                f"a guard lets only the newest holder write, and {self.name!r} is {self.part.shown}: several hold it "
                "together; guard an exclusive lock"
            )
        return Guarded(self, guard)

    async def take_or_recall(self, after: int, timeout: float | None) -> Lease | Record:
        """Do what `acquire` does, unless the name has a record of a grant after the fence *after*: return that."""
        self._client.enter(self.name)
        call = Recalling(self._client, self._ask(), timeout, after)
        try:
            answer = await call.once()  # a record answers at once, however many wait
            if isinstance(answer, Busy):
                if timeout == 0:
                    raise call.refused()
                answer = await call.wait()
        except Recorded as recorded:
            return recorded.record
        return self._leased(call.ask, *answer)

    async def __aenter__(self) -> Lease:
        """Acquire, and let a loss cancel the body (async code, unless ``on_lost="flag"``)."""
        self.refuse_second_block()
        lease = await self.acquire_by(self.timeout)
        self._client.entered.push(lease)
        lease.arm()
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back, as `Lease` does."""
        lease = self.leaving()
        if lease is None:
            raise Misuse(f"the block of lock {self.name!r} is left without having been entered by this client")
        try:
            await lease.__aexit__(kind, exc, trace)
        except BaseException:
            lease.leave()  # Ctrl-C may have come before the release was begun
            raise

    def abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when a block had not begun or was about to end: give up what it held.

        Only the block knows its lease, and it will not come back to it: it would be renewed for ever.
        """
        if not isinstance(error, Misuse):  # that is a block inside another, which goes on
            for lease in self._client.entered.drop(self.name, self._client.runtime.current()):
                lease.leave()

    def leaving(self) -> Lease | None:
        """The lease of the block that is being left, which is forgotten."""
        entered, current = self._client.entered, self._client.runtime.current
        return entered.pop(self.name, current) if self.part is None else entered.pop_part(self.name, current())

    def refuse_second_block(self) -> None:
        """Refuse a block inside another on the same name: when both end, nobody can tell whose lease is whose."""
        if self.part is not None and self._client.entered.has_part(self.name, self._client.runtime.current()):
            raise Misuse(
                f"this task or thread is in a block on {self.name!r} already: take more of it at once (weight=), or "
                "use acquire() and release()"
            )

    def __repr__(self) -> str:
        part = f" {self.part.shown}" if self.part is not None else ""
        return f"<Lock {self.name!r}{part} ttl={self.ttl:g} timeout={self.timeout}>"

    def _ask(self) -> Ask:
        token = self._client.runtime.token()
        return Ask(self.name, token if self.part is None else self.part.token(token), self.ttl, self.note, False)

    def _leased(self, ask: Ask, grant: Grant, sent_at: float) -> Lease:
        lease: Lease | None = None
        try:
            claim = Claim(ask.name, ask.token, grant.fence, grant.ttl)
            lease = Lease(self._client, claim, sent_at, self.note, self.max_hold, self.on_lost)
            self._client.keep(lease)
        except BaseException:  # Ctrl-C
            if lease is not None:
                lease.end("released")  # the traceback may be kept, and with it what looks held and refuses the next
            self._client.keeper.give_back(ask.name, ask.token, self.ttl)
            raise
        return lease
