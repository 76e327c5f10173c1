"""The loop in which a client looks after what it has in a store: it wakes in time, and ends when there is nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from dibs.runtime import Event, Job, Runtime

IDLE = 20
"""Looks in a row that find nothing to watch, after which the loop ends. To begin it again takes 0.1 ms."""

SHORTEST = 0.01
"""Seconds between two looks at least: what is overdue may stay so for a while."""


class Watched(Protocol):
    """What a `WatchLoop` looks after: all that one client has in a store."""

    def is_idle(self) -> bool:
        """Whether there is nothing to look after."""

    def next_end(self) -> float:
        """When the first of what it has ends, by `Runtime.now`; infinity if nothing does."""

    async def look(self) -> None:
        """Do what is due. It stops early once `WatchLoop.closed` is true."""


class WatchLoop:
    """Runs beside the client from `start` until it is closed, or until there has been nothing to watch for a while."""

    def __init__(
        self, runtime: Runtime, name: str, nap: float, sleep: Callable[[float], Awaitable[object]] | None = None
    ) -> None:
        """*nap* is the longest time between two looks, in seconds. *sleep* waits in place of the loop's own event."""
        self._runtime, self._name, self._longest = runtime, name, nap
        self._sleep = sleep or self._until_woken
        self._mutex = runtime.mutex()
        self._wake_up: Event | None = None  # made with the job: an event may need a running loop
        self._wakes_at = 0.0
        self._job: Job | None = None
        self.closed = False

    def start(self, watched: Watched) -> None:
        """Look after *watched*, unless the loop runs already. Raises what `Runtime.spawn` raises."""
        if self._job is None:
            with self._mutex:
                if self._job is None and not self.closed:
                    self._wake_up = self._runtime.event()
                    self._job = self._runtime.spawn(lambda: self._run(watched), self._name)

    def wake(self) -> None:
        """Let it look now. It may be called from any thread."""
        if self._wake_up is not None:
            self._wake_up.set()

    def wake_by(self, moment: float) -> None:
        """Let it look at *moment* at the latest: something was added that ends then."""
        if moment < self._wakes_at:
            self.wake()

    def stop(self) -> None:
        """Let it end, and never start again."""
        self.closed = True
        self.wake()

    async def join(self, within: float) -> None:
        """Wait until it has ended, at most *within* seconds."""
        job = self._job
        if job is not None:
            await job.join(within)

    async def _run(self, watched: Watched) -> None:
        idle = 0
        try:
            while not self.closed and idle < IDLE:
                await self._nap(watched)
                await watched.look()
                idle = idle + 1 if watched.is_idle() else 0
        finally:
            self._job = None
        if not watched.is_idle():  # it was added in this moment, by a call that saw a loop that runs
            self.start(watched)

    async def _nap(self, watched: Watched) -> None:
        now = self._runtime.now()
        self._wakes_at = now + self._longest  # before the look at the ends: what is added meanwhile wakes us
        self._wakes_at = min(self._wakes_at, watched.next_end())
        await self._sleep(max(SHORTEST, self._wakes_at - now))

    async def _until_woken(self, seconds: float) -> None:
        assert self._wake_up is not None
        await self._wake_up.wait(seconds)
        self._wake_up.clear()  # after the wait: what wakes us during a look counts for the next nap
