"""A lock and the guard of what it protects, taken in one step: acquire, claim, work, seal, give back.

Who claims late loses: between a new holder's read and its first write, the guard has not seen its fence, and accepts
the write of the holder before it, which is then overwritten. So the claim comes before the block begins.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import TracebackType
from typing import Protocol

from dibs.core.copying import NotCopied
from dibs.core.lease import Lease, leave
from dibs.errors import DibsError, Misuse


class Guardable(Protocol):
    """A lock, as a guarded block takes it."""

    @property
    def name(self) -> str:
        """What is locked."""

    async def _take(self, *, taken: list[Lease]) -> Lease:
        """Wait until it is ours; the lease is in *taken* as soon as it exists."""


class Guard(Protocol):
    """What a resource offers to holders; in `dibs.guards` there are some. Its answers may have to be awaited."""

    def claim(self, name: str, fence: int, /) -> Awaitable[object] | object:
        """Refuse all older fences of *name* from now on; `StaleFence` if a newer one was here."""

    def seal(self, name: str, fence: int, /) -> Awaitable[object] | object:
        """Refuse this fence as well from now on."""


class Guarded(NotCopied):
    """One block under a lock whose guard knows of it, as `Lock.guarded` returns it. Make a new one for each block."""

    __slots__ = ("_guard", "_lease", "_lock", "_taken")

    _instead = "call guarded() for each block"

    def __init__(self, lock: Guardable, guard: Guard) -> None:
        self._lock, self._guard = lock, guard
        self._lease: Lease | None = None
        self._taken: list[Lease] = []

    async def __aenter__(self) -> Lease:
        """Acquire and claim; where the claim fails, give back."""
        if self._lease is not None:
            raise Misuse(f"this block of lock {self._lock.name!r} was entered already; call guarded() once for each")
        lease = self._lease = await self._lock._take(taken=self._taken)
        try:
            lease._arm()
            await _done(self._guard.claim(lease.name, lease.fence))
            lease.check()  # a claim can wait for long, behind a transaction of a holder that stands still
        except BaseException as exc:
            await lease.__aexit__(type(exc), exc, exc.__traceback__)
            raise
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Seal and give back, as `Lease` does."""
        lease = self._lease
        if lease is None:
            raise Misuse(f"the guarded block of lock {self._lock.name!r} is left without having been entered")
        try:
            if not isinstance(exc, GeneratorExit):  # the coroutine is being closed: nothing can be awaited any more
                await self._seal(lease)
        finally:
            await lease.__aexit__(kind, exc, trace)

    def __repr__(self) -> str:
        return f"<Guarded {self._lock!r} by {self._guard!r}>"

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block had not begun or was about to end: give up what it held."""
        if not isinstance(error, Misuse):  # that is a block inside, which goes on
            leave(self._taken)

    async def _seal(self, lease: Lease) -> None:
        """Sealing makes a good end better, and is no reason to call it bad: the work was done, and is committed."""
        try:
            await _done(self._guard.seal(lease.name, lease.fence))
        except Exception as error:  # noqa: BLE001 - the caller's database may raise anything
            if not isinstance(error, DibsError):  # a newer holder has claimed: that seals as well
                lease._tell(None, f"its guard was not told: {error}")


def for_blocking(guard: Guard, name: str) -> Guard:
    """Return *guard* if the lock *name* of blocking code can have it; `Misuse` if its answers have to be awaited."""
    import inspect  # noqa: PLC0415 - costs 10 ms at start, and is needed only here

    if not getattr(guard, "blocking", not inspect.iscoroutinefunction(guard.claim)):
        raise Misuse(
            f"the guard {guard!r} of lock {name!r} is for async code: what it answers has to be awaited. Give it a "
            "connection for blocking code, or take the lock with dibs.aio"
        )
    return guard


async def _done(answer: Awaitable[object] | object) -> None:
    if isinstance(answer, Awaitable):
        await answer
