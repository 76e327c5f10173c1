"""The sessions of one client: a single one while all its locks have about the same ttl.

A lease ends with its session, so the ttl becomes the session's timeout. After a crash, a lock with a short ttl must not
stay taken for the long ttl of another lock: a lock with a much shorter ttl gets a session of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dibs.errors import NotSupported
from dibs.runtime import Runtime
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.port.source import ZooKeeperSource

LIKE = 0.75
"""A session serves each ttl that is at least this fraction of its own."""

HALF_A_TICK = 1.0
"""Seconds that the server we talk to may delay our heartbeats on their way to the leader, with the usual tick of 2 s.

If that server dies then, the leader counts from an earlier heartbeat than we do. So a lease is shorter than its session
by this time, or by a quarter of a short session: no session is shorter than two ticks.
"""

SHORT_TTL = 3.0
"""The ttl of the short session, for nodes of waiters with a longer ttl; servers seldom give a shorter one."""

OBSERVER_TTL = 30.0
"""The ttl of the session in which a client looks at locks before it takes any."""


class ZooKeeperSessions:
    """The open sessions of one client."""

    def __init__(self, source: ZooKeeperSource, runtime: Runtime, changed: Callable[[], None]) -> None:
        self._source, self._runtime, self._changed = source, runtime, changed
        self._mutex = runtime.mutex()
        self.all: list[tuple[float, ZooKeeperSession]] = []
        """Each session with the ttl for which it was opened."""
        self._longest = math.inf

    async def serving(self, ttl: float, until: float) -> ZooKeeperSession:
        """A session for leases of *ttl*, connected."""
        if ttl > self._longest:
            raise self._too_long(ttl)
        session = self._choose(ttl)
        await session.connected(until)
        if (given := lease_of(session.timeout)) < ttl:
            self._longest = given
            await self._drop(session)
            raise self._too_long(ttl)
        return session

    async def short_session(self, holding: ZooKeeperSession, until: float) -> ZooKeeperSession | None:
        """A session for the node of a waiter that will hold in *holding*; None if *holding* is as short itself."""
        if lease_of(holding.timeout) * LIKE <= SHORT_TTL:
            return None
        return await self.serving(SHORT_TTL, until)

    async def observer(self, until: float) -> ZooKeeperSession:
        """A session for looking at locks, connected: any will do."""
        if not self.all:
            return await self.serving(min(OBSERVER_TTL, self._longest), until)
        session = self.all[0][1]
        await session.connected(until)
        return session

    async def close(self) -> None:
        """End all sessions, and wait for that."""
        for _, session in self._take_all():
            await session.close()

    def abandon(self) -> None:
        """Ask the ensemble to end all sessions, and do not wait."""
        for _, session in self._take_all():
            session.abandon()

    def forked(self) -> None:
        """Leave all sessions to the parent process."""
        for _, session in self._take_all():
            session.forked()

    def _choose(self, ttl: float) -> ZooKeeperSession:
        with self._mutex:
            for served, session in self.all:
                if served * LIKE <= ttl <= served:
                    return session
            session = ZooKeeperSession(self._source, session_for(ttl), self._runtime, self._changed)
            self.all.append((ttl, session))
            return session

    async def _drop(self, session: ZooKeeperSession) -> None:
        with self._mutex:
            self.all = [each for each in self.all if each[1] is not session]
        await session.close()

    def _take_all(self) -> list[tuple[float, ZooKeeperSession]]:
        taken, self.all = self.all, []
        return taken

    def _too_long(self, ttl: float) -> NotSupported:
        return NotSupported(
            f"ttl={ttl:g}: in the longest session that {self._source.shown} gives, a lease has "
            f"{self._longest:g} s; lower the ttl, or raise maxSessionTimeout in the servers' configuration"
        )


def session_for(ttl: float) -> float:
    """The timeout of a session for leases of *ttl*, in whole milliseconds."""
    return (math.ceil((ttl + min(ttl / 3, HALF_A_TICK)) * 1000) + 0.5) / 1000


def lease_of(timeout: float) -> float:
    """The ttl of the leases in a session with *timeout*."""
    return timeout - min(timeout / 4, HALF_A_TICK)
