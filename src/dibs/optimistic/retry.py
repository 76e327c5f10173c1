"""Runs a function again when somebody else was first, with the read and the computation; in the end under a lock.

Only what another writer caused is tried again: `Changed`, and what databases raise when two transactions meet
(serialization failures, deadlocks, SQLite's stale snapshot). All else comes out at once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, ParamSpec, Protocol, TypeVar

from dibs.core.checks import Seconds, checked_length, shown
from dibs.core.deferred import check_at_once, done, is_async, refuse_descriptor
from dibs.errors import Changed, LeaseLost, Misuse, NotAcquired, StoreUnavailable
from dibs.ports.db.errors import lost_a_race
from dibs.runtime import Runtime, run

P = ParamSpec("P")
R = TypeVar("R")


class Acquirable(Protocol):
    """A lock, of the colour of the function."""

    def acquire(self) -> Any:
        """Wait until it is ours."""


def retry(
    *,
    attempts: int = 10,
    wait: Seconds = 0.01,
    longest: Seconds = 1.0,
    lock: Acquirable | Callable[..., Acquirable] | None = None,
    lock_after: int = 3,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, sync or async, that reads, computes and writes: it runs again as long as others are first.

    The whole function is run, at most *attempts* times; then the last `Changed` comes out. Between two runs it waits
    a random time, up to *wait* at first and twice as much each time, never over *longest*. With *lock*, a lock or a
    function that makes one from the arguments, all runs after *lock_after* are under that lock, so that in a crowd
    somebody gets through. What is right is decided by the version alone: without its lock it runs all the same.
    """
    first, most = checked_length(wait, "wait"), checked_length(longest, "longest")
    for value, what in ((attempts, "attempts"), (lock_after, "lock_after")):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise Misuse(f"{what}={shown(value)}: it is a number of runs, at least 1")

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        refuse_descriptor(function)
        check_at_once(function)
        plan = _Plan(attempts, first, most, lock, lock_after)
        return _async(plan, function) if is_async(function) else _blocking(plan, function)

    return decorate


def _blocking(plan: _Plan, function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        from dibs.runtime.threads import ThreadRuntime  # noqa: PLC0415 - the other colour does not need it

        async def attempt() -> R:
            return done(function(*args, **kwargs), function)

        return run(plan.carry_out(ThreadRuntime(), attempt, args, kwargs))

    return call


def _async(plan: _Plan, function: Callable[P, Any]) -> Callable[P, Any]:
    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        from dibs.runtime.asyncio import AsyncioRuntime  # noqa: PLC0415 - the other colour does not need it

        async def attempt() -> Any:
            return done(await function(*args, **kwargs), function)

        return await plan.carry_out(AsyncioRuntime(), attempt, args, kwargs)

    return call


class _Plan:
    """How often, how long to wait between, and when to take the lock."""

    def __init__(self, attempts: int, wait: float, longest: float, lock: Any, lock_after: int) -> None:
        self._attempts, self._wait, self._longest = attempts, wait, longest
        self._lock, self._lock_after = lock, lock_after

    async def carry_out(self, runtime: Runtime, attempt: Callable[[], Awaitable[R]], args: Any, kwargs: Any) -> R:
        """Run it until it is through, or to the bound."""
        lease: Any = None
        try:
            for number in range(1, self._attempts + 1):
                if self._lock is not None and number > self._lock_after and lease is None:
                    lease = await self._acquired(args, kwargs)
                try:
                    return await attempt()
                except Exception as error:
                    if not (isinstance(error, Changed) or lost_a_race(error)):
                        raise
                    if number == self._attempts:
                        error.add_note(f"it was run {number} times, and somebody else was first each time")
                        raise
                if not lease:
                    await runtime.sleep(runtime.random() * min(self._longest, self._wait * 2 ** min(number - 1, 60)))
            raise AssertionError("there is at least one attempt")
        finally:
            if lease:
                await _released(lease)

    async def _acquired(self, args: Any, kwargs: Any) -> Any:
        """The lease; False if there is none to be had, which is no reason to stop."""
        lock = self._lock if hasattr(self._lock, "acquire") else self._lock(*args, **kwargs)
        try:
            return await _done(lock.acquire())
        except (NotAcquired, StoreUnavailable):
            return False


async def _released(lease: Any) -> None:
    """What was written is right whether or not the lease was lost, and a release is tried again by its client."""
    with suppress(LeaseLost, StoreUnavailable):
        await _done(lease.release())


async def _done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
