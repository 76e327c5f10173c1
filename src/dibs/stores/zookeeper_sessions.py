"""The sessions of one client: one, as long as all its locks have about the same ttl.

A lease ends with its session, so the session's timeout is what the ttl becomes. A lock whose ttl is much shorter must
not stay taken for the long one of another after a crash, and has a session of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dibs.errors import NotSupported
from dibs.ports.zookeeper import Session
from dibs.ports.zookeeper_source import Source
from dibs.runtime import Runtime

LIKE = 0.75
"""A session serves a ttl that is not shorter than so much of its own."""

HALF_A_TICK = 1.0
"""Seconds for which the server we talk to may keep our signs of life from the leader, with the usual tick of 2 s.

If it dies then, the leader counts from an earlier one than we do. So a lease is by so much shorter than its session; a
quarter of a short one, as no session is shorter than two ticks.
"""

DESK_TTL = 30.0
"""The ttl of the session that looks at locks where none was taken."""


class Sessions:
    """Those that are open."""

    def __init__(self, source: Source, runtime: Runtime, changed: Callable[[], None]) -> None:
        self._source, self._runtime, self._changed = source, runtime, changed
        self._mutex = runtime.mutex()
        self.all: list[tuple[float, Session]] = []
        """Each with the ttl that it was opened for."""
        self._longest = math.inf

    async def serving(self, ttl: float, until: float) -> Session:
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

    async def desk(self, until: float) -> Session:
        """Any session, connected."""
        if not self.all:
            return await self.serving(min(DESK_TTL, self._longest), until)
        session = self.all[0][1]
        await session.connected(until)
        return session

    async def close(self) -> None:
        """End them all."""
        for _, session in self._take_all():
            await session.close()

    def abandon(self) -> None:
        """Ask for their end, and do not wait: nobody knows them any more."""
        for _, session in self._take_all():
            session.abandon()

    def forked(self) -> None:
        """Leave them to the parent."""
        for _, session in self._take_all():
            session.forked()

    def _choose(self, ttl: float) -> Session:
        with self._mutex:
            for served, session in self.all:
                if served * LIKE <= ttl <= served:
                    return session
            session = Session(self._source, session_for(ttl), self._runtime, self._changed)
            self.all.append((ttl, session))
            return session

    async def _drop(self, session: Session) -> None:
        with self._mutex:
            self.all = [each for each in self.all if each[1] is not session]
        await session.close()

    def _take_all(self) -> list[tuple[float, Session]]:
        taken, self.all = self.all, []
        return taken

    def _too_long(self, ttl: float) -> NotSupported:
        return NotSupported(
            f"ttl={ttl:g}: the sessions of {self._source.shown} are at most so long that a lease has "
            f"{self._longest:g} s; lower the ttl, or raise maxSessionTimeout in the servers' configuration"
        )


def session_for(ttl: float) -> float:
    """The timeout of a session for leases of *ttl*, in whole milliseconds."""
    return (math.ceil((ttl + min(ttl / 3, HALF_A_TICK)) * 1000) + 0.5) / 1000


def lease_of(timeout: float) -> float:
    """The ttl of the leases in a session with *timeout*."""
    return timeout - min(timeout / 4, HALF_A_TICK)
