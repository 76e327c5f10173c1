"""Several locks as one: all are taken or none, in one order, and the loss of one is the loss of the whole.

The order is that of the names, by their bytes. Two who want the same locks therefore meet at the first that both want,
and one waits there holding nothing that the other still needs: no circle of waiting can close. What was taken is given
back however the rest fails, by timeout, error, cancel or Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dibs.core.budgets import LEAST, PARTING, RETURN_BUDGET
from dibs.core.checks import Seconds, checked_timeout
from dibs.core.copying import NotCopied
from dibs.core.deadline import Deadline
from dibs.core.lease import Lease
from dibs.core.lock import AS_THE_LOCK_SAYS, Lock, _AsTheLockSays
from dibs.core.loss import Loss
from dibs.errors import LossReason, Misuse, NotAcquired, StoreUnavailable

if TYPE_CHECKING:
    from dibs.core.context import Context


class Locks:
    """The description of several locks that are taken together, made by `Client.all`. It holds no state.

    As a context manager it acquires all on entry, waiting as long as its *timeout*, and gives all back on exit.
    """

    __slots__ = ("_context", "_locks", "_timeout")

    def __init__(self, context: Context, locks: Sequence[Lock], timeout: float | None) -> None:
        self._context, self._timeout = context, timeout
        self._locks = sorted((_checked(context, lock) for lock in locks), key=lambda lock: lock.name.encode())
        if not locks:
            raise Misuse("all() takes the names of the locks, or locks: at least one")
        for one, other in zip(self._locks, self._locks[1:], strict=False):
            if one.name == other.name:
                raise Misuse(f"{one.name!r} is named twice in all(): it cannot be held twice; name it once")

    @property
    def names(self) -> tuple[str, ...]:
        """What is locked, in the order in which it is taken."""
        return tuple(lock.name for lock in self._locks)

    async def acquire(self, *, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS) -> Leases:
        """Wait until all are ours, at most *timeout* seconds for the whole: None waits for ever, 0 tries once.

        Raises what `Lock.acquire` raises, `NotAcquired` with the name and holder of the one that was missing, and
        then nothing is held.
        """
        return await self._take(timeout)

    async def _take(
        self, timeout: Seconds | _AsTheLockSays | None = AS_THE_LOCK_SAYS, taken: list[Lease] | None = None
    ) -> Leases:
        """Do `acquire`; each lease is in *taken* as soon as it exists, as with `Lock.take`."""
        wait = self._timeout if isinstance(timeout, _AsTheLockSays) else checked_timeout(timeout)
        for lock in self._locks:  # before anything is taken
            self._context.check_usable(lock.name, lock._share)
        started = self._context.runtime.now()
        deadline = Deadline(self._context.runtime.now, wait)
        taken = [] if taken is None else taken
        try:
            for lock in self._locks:
                if taken and wait and deadline.passed():
                    raise NotAcquired(lock.name, None, 0.0)
                left = None if wait is None else max(deadline.left(), min(wait, LEAST))  # 0 would be another thing
                await lock._take(left, taken)
            return Leases(self._context, taken)
        except BaseException as error:
            await _give_up(taken, error, _parting(wait, deadline))
            if isinstance(error, NotAcquired):
                waited = self._context.runtime.now() - started
                raise NotAcquired(error.name, error.holder, waited, error.why) from None
            raise

    async def try_acquire(self) -> Leases | None:
        """Take all if all are free now, else return None. Raises only if the store is broken."""
        return await self._try_take()

    async def _try_take(self, taken: list[Lease] | None = None) -> Leases | None:
        """Do `try_acquire`."""
        try:
            return await self._take(0, taken)
        except NotAcquired:
            return None

    def __aenter__(self) -> Coroutine[Any, Any, Leases]:
        """Acquire, and let the loss of one cancel the body (async code, unless ``on_lost="flag"``)."""
        return self._open()

    async def _open(self, taken: list[Lease] | None = None) -> Leases:
        """Begin a block."""
        for lock in self._locks:
            lock._refuse_second_block()
        leases = await self._take(taken=taken)
        for lease in leases.values():
            self._context.open_blocks.push(lease)
            lease._arm()
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give all back, as `Leases` does."""
        leases = [lease for lock in self._locks if (lease := lock._leaving()) is not None]
        if not leases:
            raise Misuse(f"the block of locks {self.names} is left without having been entered by this client")
        try:
            await _unwind(leases, exc)
        except BaseException:
            for lease in leases:
                lease._leave()  # Ctrl-C may have come before a release was begun
            raise
        finally:
            for lease in leases:
                self._context.open_blocks.remove(lease)

    def _undo(self, taken: list[Lease]) -> None:
        """A block was not begun, because of Ctrl-C, although all this was granted for it: give it back."""
        self._context.undo(taken)

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when a block was about to end: give up what it held."""
        for lock in self._locks:
            lock._abandon(error)

    def __repr__(self) -> str:
        return f"<Locks {', '.join(map(repr, self.names))} timeout={self._timeout}>"


class Leases(Mapping[str, Lease], NotCopied):
    """The grants of several locks, as `Locks.acquire` returns them: a mapping of names to leases.

    Use it as a context manager, or call `release` when the work is done.
    """

    __slots__ = ("_context", "_leases")

    _instead = "hand each lease over with to_str() and client.resume()"

    def __init__(self, context: Context, leases: Sequence[Lease]) -> None:
        self._context = context
        self._leases = {lease.name: lease for lease in leases}

    def __getitem__(self, name: str) -> Lease:
        """The lease on *name*."""
        return self._leases[name]

    def __iter__(self) -> Iterator[str]:
        """The names, in the order in which they were taken."""
        return iter(self._leases)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._leases)

    @property
    def fences(self) -> dict[str, int]:
        """What the resources check, by name."""
        return {name: lease.fence for name, lease in self._leases.items()}

    @property
    def lost(self) -> LossOfAny:
        """Whether one of them was lost, as a flag: ``if leases.lost``, ``leases.lost.wait(1)``."""
        return LossOfAny(self._context, [lease.lost for lease in self._leases.values()])

    @property
    def lost_reason(self) -> LossReason | None:
        """Why the first of them was lost; None as long as none was."""
        return self.lost.reason

    def expires_in(self) -> float:
        """Seconds for which all are still valid if no renewal succeeds; 0 when one is over."""
        return min(lease.expires_in() for lease in self._leases.values())

    def check(self) -> None:
        """Raise `LeaseLost` if one was lost, `Misuse` if it was given up. Costs no I/O."""
        for lease in self._leases.values():
            lease.check()

    async def renew(self) -> None:
        """Extend all now, for example before a long step; else the keeper does it in time."""
        for lease in self._leases.values():
            await lease.renew()

    async def release(self) -> None:
        """Give all back. Doing it again does nothing.

        Raises what `Lease.release` raises, for the first that does, when all have been tried.
        """
        await _unwind(list(self._leases.values()), None, quietly=False)

    async def __aenter__(self) -> Self:
        """Let the loss of one cancel the body from now on (async code, unless it has ``on_lost="flag"``)."""
        self.check()
        for lease in self._leases.values():
            lease._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give all back; say `LeaseLost` if one was lost, unless the body raises something of its own."""
        await _unwind(list(self._leases.values()), exc)

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block was about to end: give all back all the same."""
        for lease in self._leases.values():
            lease._abandon(error)

    def __repr__(self) -> str:
        return f"<Leases {', '.join(map(repr, self._leases.values()))}>"


class LossOfAny(NotCopied):
    """The loss of one of several leases, as a flag: ``if leases.lost``, ``leases.lost.wait(1)``."""

    __slots__ = ("_context", "_losses")

    _instead = "ask the leases, in the process that holds them"

    def __init__(self, context: Context, losses: Sequence[Loss]) -> None:
        self._context, self._losses = context, losses

    @property
    def reason(self) -> LossReason | None:
        """Why the first of them was lost; None if none was."""
        return next((loss._reason for loss in self._losses if loss._reason is not None), None)

    def __bool__(self) -> bool:
        """Whether one was lost, by the clock of this moment."""
        return self.reason is not None

    def is_set(self) -> bool:
        """Whether one was lost, by the clock of this moment."""
        return bool(self)

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until one is lost or all are given up, at most *timeout* seconds; tell whether one was lost."""
        event, now = self._context.runtime.event(), self._context.runtime.now
        until = Deadline(now, checked_timeout(timeout))
        for loss in self._losses:
            loss._when_over(event.set)
        try:
            while True:
                event.clear()
                held = [loss for loss in self._losses if loss._can_happen]
                if self or not held or until.passed():
                    break
                await event.wait(min(until.left(), max(0.0, min(loss._deadline for loss in held) - now())))
        finally:
            for loss in self._losses:
                loss._forget(event.set)
        return bool(self)

    def __repr__(self) -> str:
        return f"<LossOfAny {self.reason.value}>" if self.reason else "<LossOfAny: none lost>"


def _checked(context: Context, lock: object) -> Lock:
    if not isinstance(lock, Lock) or lock._context is not context:
        raise Misuse(f"all() takes names and locks of this client, not {lock!r}")
    return lock


def _parting(wait: float | None, deadline: Deadline) -> float:
    """Seconds in which what was taken is given back; what cannot be is left to the keeper."""
    return min(deadline.left(PARTING), RETURN_BUDGET) if wait else RETURN_BUDGET


async def _give_up(taken: Sequence[Lease], error: BaseException, within: float) -> None:
    """Give *taken* back because of *error*: now if there is a store that answers, and time; else by the keeper."""
    try:
        if within >= LEAST and not isinstance(error, GeneratorExit | StoreUnavailable):
            for lease in reversed(taken):
                await lease._give_up(within / len(taken))
    finally:
        for lease in taken:
            lease._leave()


async def _unwind(leases: Sequence[Lease], exc: BaseException | None, *, quietly: bool = True) -> None:
    """Leave as that many nested blocks would be left; what comes out of the inner ones goes into the outer ones.

    Not *quietly*: as that many releases, each of which may fail.
    """
    error, failed = exc, None
    for lease in reversed(leases):
        try:
            if quietly:
                await lease.__aexit__(type(error) if error is not None else None, error, None)
            else:
                await lease.release()
        except BaseException as raised:  # noqa: BLE001 - it comes out at the end, when all have been given back
            if quietly or failed is None or not isinstance(raised, Exception):
                error = failed = raised
    if failed is not None:
        raise failed
