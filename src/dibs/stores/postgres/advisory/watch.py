"""Watches the sessions of one client: a socket that ends, a ttl that is over, a lock that nobody fetched."""

from __future__ import annotations

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Job, Runtime
from dibs.stores.postgres.advisory.holding import AdvisoryLock
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.release import AdvisoryReleases
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.advisory.waiting import WaitingSessions

STEPPING_OUT = 0.5
"""Seconds for giving something up, before its session is closed."""

RESERVED = 0.2
"""Seconds for which a lock that the server gave to one of our waiters is kept for it: it may stand still."""

NAP = 1.0
"""Seconds after which the watch looks at the clock again."""

IDLE = 20
"""Naps without a lock after which the watch ends: it costs nothing to keep, and 0.1 ms to begin."""


class AdvisoryWatch:
    """Runs in the background while something is locked in the sessions, or waited for."""

    def __init__(
        self,
        held: AdvisoryLocks,
        sessions: Sessions,
        losses: AdvisoryLosses,
        waiting: WaitingSessions,
        releases: AdvisoryReleases,
        runtime: Runtime,
    ) -> None:
        self._held, self._sessions, self._losses, self._waiting = held, sessions, losses, waiting
        self._releases, self._runtime = releases, runtime
        self.begin()

    def begin(self) -> None:
        """Nothing is watched yet, as in a new client."""
        self._mutex = self._runtime.mutex()
        self._job: Job | None = None
        self._closed = False

    def start(self) -> None:
        """Watch the sockets and the clock, until nothing has been locked for a while."""
        if self._job is not None:
            return
        with self._mutex:
            if self._job is None and not self._closed:
                self._job = self._runtime.spawn(self._run, "dibs sessions")

    async def close(self) -> None:
        """Stop watching, and stepping out of lines: a session that is closed while it waits stays there for seconds."""
        until = self._runtime.now() + STEPPING_OUT
        for token in list(self._waiting.all):
            await self._waiting.step_out(token, until)
        self._closed = True
        wire, job = self._sessions.tripwire, self._job
        if wire is not None:
            wire.wake()
        if job is not None:
            await job.join(2 * STEPPING_OUT)

    async def _run(self) -> None:
        idle = 0
        try:
            while not self._closed and idle < IDLE:
                await self._nap()
                await self._look()
                idle = 0 if self._held.all or self._waiting.all else idle + 1
        finally:
            self._job = None

    async def _nap(self) -> None:
        now, wire = self._runtime.now(), self._sessions.tripwire
        ends = [held.ends_at for held in list(self._held.all.values())]
        nap = max(0.01, min([RESERVED if self._waiting.all else NAP, *(end - now for end in ends)]))
        if wire is None:
            await self._runtime.sleep(nap)
        else:
            await self._runtime.readable(wire.fd, nap)

    async def _look(self) -> None:
        wire = self._sessions.tripwire
        ended = set(wire.ended()) if wire is not None else set()
        for session in self._sessions.known:
            if session.line.fd in ended and not self._closed:
                session.line.broken = True
                await self._losses.end(session)
        for held in list(self._held.all.values()):
            if held.ends_at <= self._runtime.now() and not self._closed:
                await self._give_up(held)
        for token, wait in list(self._waiting.all.items()):
            if self._closed or wait.session.attended or not wait.session.answered():
                continue
            if wait.called_at is None:
                wait.called_at = self._runtime.now()
            elif self._runtime.now() >= wait.called_at + RESERVED:
                await self._waiting.step_out(token, self._runtime.now() + STEPPING_OUT)

    async def _give_up(self, held: AdvisoryLock) -> None:
        """Its lease is over, and nobody gave it back: unlock it, or end the session."""
        try:
            await self._releases.release(held.token, self._runtime.now() + STEPPING_OUT)
        except StoreUnavailable:
            await self._losses.end(held.session)
        else:
            self._losses.remember(held.token, LossReason.EXPIRED)
