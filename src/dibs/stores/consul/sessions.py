"""The sessions of one client: one for each ttl, which carries all its leases of that ttl.

Consul promises that a session lives for its ttl after a renewal, and lets it live for up to twice that. A lease counts
from its own ask, so a session has a little more than the ttl of its leases. It is renewed before a grant if its last
renewal is older than that little, so most grants need no renewal.

Each session has a key, and every grant checks the index of that key, its *stamp*. To make sure that an earlier request
is never carried out, the client writes the key: requests with an older stamp are refused from then on.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from dibs.errors import StoreUnavailable
from dibs.holder import here, signature
from dibs.runtime import Event, Runtime
from dibs.stores.consul.keys import ConsulNaming
from dibs.stores.consul.options import ConsulOptions
from dibs.stores.consul.port.agent import Agent, ConsulRefusal, Entry, Op
from dibs.stores.consul.txn import locked, packed

MORE = 1 / 8
"""By how much a session is longer than its leases, as a part of their ttl."""

CLOSING = 1.0
"""Seconds that closing may take to end all sessions."""


class ConsulSession:
    """One session with Consul, as it was when it was last confirmed."""

    __slots__ = ("delay", "ended", "id", "key", "sent_at", "stamp", "ttl")

    def __init__(self, session: str, ttl: float, delay: float, key: str, sent_at: float) -> None:
        self.id, self.ttl, self.delay, self.key = session, ttl, delay, key
        self.sent_at = sent_at  # when the last confirmed renewal was sent
        self.stamp = 0
        self.ended = False


class PendingSession:
    """A session that is being made, and the event that its waiters wait for."""

    __slots__ = ("done", "error", "session")

    def __init__(self, done: Event) -> None:
        self.done = done
        self.session: ConsulSession | None = None
        self.error: Exception | None = None


class ConsulSessions:
    """Makes, renews and ends the sessions of one client."""

    def __init__(self, agent: Agent, naming: ConsulNaming, runtime: Runtime, options: ConsulOptions) -> None:
        self._agent, self._naming, self._runtime, self._options = agent, naming, runtime, options
        self.on_end: Callable[[ConsulSession], None] = lambda _: None
        """Called when a session turns out to have ended at the server."""
        self.begin()

    def begin(self) -> None:
        """Have no session: at the start, and in a forked child."""
        self._mutex = self._runtime.mutex()
        self._ready: dict[float, ConsulSession] = {}
        self._making: dict[float, PendingSession] = {}

    async def ready(self, ttl: float, until: float) -> ConsulSession:
        """The session for leases of *ttl*; it lives for at least that long from now."""
        while True:
            session = self._ready.get(ttl) or await self._made(ttl, until)
            if await self._is_fresh(session, until):
                return session

    async def renew(self, session: ConsulSession, until: float) -> bool:
        """Let *session* live for its ttl from now; False if it has ended."""
        sent_at = self._runtime.now()
        if not await self._agent.renew_session(session.id, until - sent_at):
            self._end(session)
            return False
        session.sent_at = max(session.sent_at, sent_at)
        return True

    async def restamp(self, session: ConsulSession, until: float, *ops: Op) -> list[Entry] | ConsulRefusal | None:
        """Void all earlier requests of *session* that were not carried out yet, and do *ops*; None if it has ended.

        *ops* have to be safe to carry out twice.
        """
        stamp = locked(session.key, session.id, packed(token=self._runtime.token()))
        answer = await self._agent.txn([stamp, *ops], until - self._runtime.now(), again=True)
        if isinstance(answer, ConsulRefusal):
            if not answer.by_session:
                return answer
            self._end(session)
            return None
        session.stamp = max(session.stamp, answer[0].modified)
        return answer[1:]

    async def own(self, ttl: float, until: float) -> str:
        """A session for a single lease, renewed by the process that has that lease."""
        return await self._agent.create_session(self._wanted(ttl, ttl), until - self._runtime.now())

    async def close(self) -> None:
        """End all sessions, and with them what they still have locked."""
        until = self._runtime.now() + CLOSING
        for making in list(self._making.values()):
            await making.done.wait(max(0.0, until - self._runtime.now()))
        sessions, self._ready = list(self._ready.values()), {}
        for session in sessions:
            session.ended = True
            try:
                await self._agent.destroy_session(session.id, max(0.01, until - self._runtime.now()))
            except StoreUnavailable:
                return  # they end by themselves

    # ---------------------------------------------------------------------------------------------------------

    async def _is_fresh(self, session: ConsulSession, until: float) -> bool:
        if session.ended:
            return False
        if self._runtime.now() - session.sent_at <= MORE * session.ttl:
            return True
        return await self.renew(session, until)

    async def _made(self, ttl: float, until: float) -> ConsulSession:
        """Make a session in the background: if the caller is cancelled, the next one has it."""
        with self._mutex:
            ready, making = self._ready.get(ttl), self._making.get(ttl)
            if ready is not None:
                return ready
            if making is None:
                mine = making = PendingSession(self._runtime.event())
                self._runtime.spawn(lambda: self._make(ttl, until, mine), "dibs session")
                self._making[ttl] = mine  # only now: if the job cannot be started, the next caller tries again
        if not await making.done.wait(max(0.0, until - self._runtime.now())):
            raise StoreUnavailable(str(self._agent), "it has made no session in time")
        if making.session is None:
            assert making.error is not None
            raise making.error
        return making.session

    async def _make(self, ttl: float, until: float, making: PendingSession) -> None:
        try:
            making.session = await self._new(ttl, until)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            making.error = error
        finally:
            with self._mutex:  # in one step: in between, another caller would make a second session
                self._making.pop(ttl, None)
                if making.session is not None:
                    self._ready[ttl] = making.session
            making.done.set()

    async def _new(self, ttl: float, until: float) -> ConsulSession:
        sent_at, more = self._runtime.now(), (1 + MORE) * ttl
        made = await self._agent.create_session(self._wanted(ttl, more), until - sent_at)
        session = ConsulSession(made, ttl, self._options.delay_of(ttl), self._naming.client(made), sent_at)
        try:
            if await self.restamp(session, until) is None:
                raise StoreUnavailable(str(self._agent), "a session ended right after it was made")
        except StoreUnavailable:  # perhaps we may not write its key: then it is of no use
            with contextlib.suppress(StoreUnavailable):
                await self._agent.destroy_session(made, max(0.01, until - self._runtime.now()))
            raise
        return session

    def _end(self, session: ConsulSession) -> None:
        with self._mutex:
            if session.ended:
                return
            session.ended = True
            if self._ready.get(session.ttl) is session:
                del self._ready[session.ttl]
        self.on_end(session)

    def _wanted(self, ttl: float, lives: float) -> dict[str, object]:
        """The request for a session. No health check ends it: a node that is slow to answer is not dead."""
        return {
            "Name": f"dibs: {signature(here(self._runtime.pid(), '', ''))}",
            "TTL": f"{math.ceil(max(lives, self._options.min_ttl) * 1000)}ms",
            "LockDelay": f"{math.ceil(self._options.delay_of(ttl) * 1000)}ms",
            "Behavior": "delete",
            "NodeChecks": [],
        }
