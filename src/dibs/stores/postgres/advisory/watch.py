"""Watches the sessions of one client: a socket that ends, a ttl that is over, a lock that nobody fetched."""

from __future__ import annotations

import math

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.advisory.holding import AdvisoryLock
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.release import AdvisoryReleases
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.advisory.waiting import WaitingSessions
from dibs.stores.watch import WatchLoop

STEPPING_OUT = 0.5
"""Seconds for giving something up, before its session is closed."""

RESERVED = 0.2
"""Seconds for which a lock that the server gave to one of our waiters is kept for it: it may stand still."""

NAP = 1.0
"""Seconds between two looks of the watch, at most."""


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
        self._loop = WatchLoop(self._runtime, "dibs sessions", NAP, self._sleep)

    def start(self) -> None:
        """Watch the sockets and the clock, until nothing has been locked for a while."""
        self._loop.start(self)

    async def close(self) -> None:
        """Stop watching, and stepping out of lines: a session that is closed while it waits stays there for seconds."""
        until = self._runtime.now() + STEPPING_OUT
        for token in list(self._waiting.all):
            await self._waiting.step_out(token, until)
        self._loop.stop()
        if self._sessions.tripwire is not None:
            self._sessions.tripwire.wake()
        await self._loop.join(2 * STEPPING_OUT)

    # --- what the loop asks for ----------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether nothing is locked, and nothing waited for."""
        return not (self._held.all or self._waiting.all)

    def next_end(self) -> float:
        """When the first lease ends unless it is renewed, or a lock that nobody fetched is to be given up."""
        soon = self._runtime.now() + RESERVED if self._waiting.all else math.inf
        return min([soon, *(held.ends_at for held in list(self._held.all.values()))])

    async def look(self) -> None:
        """Give up what is over: the sessions whose socket ended, leases, and locks that nobody fetched."""
        wire = self._sessions.tripwire
        ended = set(wire.ended()) if wire is not None else set()
        for session in self._sessions.known:
            if session.line.fd in ended and not self._loop.closed:
                session.line.broken = True
                await self._losses.end(session)
        for held in list(self._held.all.values()):
            if held.ends_at <= self._runtime.now() and not self._loop.closed:
                await self._give_up(held)
        for token, wait in list(self._waiting.all.items()):
            if self._loop.closed or wait.session.attended or not wait.session.answered():
                continue
            if wait.called_at is None:
                wait.called_at = self._runtime.now()
            elif self._runtime.now() >= wait.called_at + RESERVED:
                await self._waiting.step_out(token, self._runtime.now() + STEPPING_OUT)

    # ---------------------------------------------------------------------------------------------------------

    async def _sleep(self, seconds: float) -> None:
        wire = self._sessions.tripwire
        if wire is None:
            await self._runtime.sleep(seconds)
        else:
            await self._runtime.readable(wire.fd, seconds)

    async def _give_up(self, held: AdvisoryLock) -> None:
        """Its lease is over, and nobody gave it back: unlock it, or end the session."""
        try:
            await self._releases.release(held.token, self._runtime.now() + STEPPING_OUT)
        except StoreUnavailable:
            await self._losses.end(held.session)
        else:
            self._losses.remember(held.token, LossReason.EXPIRED)
