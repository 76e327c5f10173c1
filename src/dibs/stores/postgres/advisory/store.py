"""Grants session locks of PostgreSQL: advisory locks, which the server frees when the session that has them ends.

There is no ttl at the server. Here a lease ends when no heartbeat on its own session was answered for its ttl, and
then the lock is given back, or the session closed: on any doubt the session is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from dibs.errors import LossReason, NotSupported, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, here, signature
from dibs.runtime import Runtime
from dibs.share import SHARED
from dibs.stores.guarantees import Ability, Bound, Effect, Guarantees, Promise
from dibs.stores.postgres.advisory import sql
from dibs.stores.postgres.advisory.asking import AnySession
from dibs.stores.postgres.advisory.grant import AdvisoryGrants
from dibs.stores.postgres.advisory.holding import Wanted
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.key import advisory_key
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.release import AdvisoryReleases
from dibs.stores.postgres.advisory.renewal import AdvisoryHeartbeats
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.advisory.waiting import WaitingSessions
from dibs.stores.postgres.advisory.watch import AdvisoryWatch
from dibs.stores.postgres.facts import session_holders, state
from dibs.stores.postgres.options import Options, options_from
from dibs.stores.postgres.port.source import Source, from_url
from dibs.stores.postgres.port.statement import Call
from dibs.stores.postgres.port.values import number, text
from dibs.stores.postgres.rows.asking import time_to_look
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

BLIND_LOOK = 0.1
"""Seconds between two tries of one for whom there was no session left to stand in line."""

TO_HEAR = 0.25
"""Seconds that the session of a holder has to pass on that it is broken, before it is ended."""

NOT_ALLOWED = "42501"

PARTING = 0.5
"""Seconds for the last request of a client that is closed."""

LOOK_AGAIN = 0.01
"""Seconds between two looks whether a session that was ended is gone."""


def open_url(url: str, namespace: str, runtime: Runtime) -> PostgresAdvisoryStore:
    """Make the store for the database that *url* names."""
    source, options = from_url(url)
    return PostgresAdvisoryStore(source, namespace, runtime, options_from(options))


class PostgresAdvisoryStore(Store):
    """Advisory locks; see docs/stores/postgres.md."""

    guarantees: ClassVar[Guarantees] = Guarantees(
        name="postgresql+advisory",
        good_for="locks that end with their holder's connection: free at once after a crash, and served by the server "
        "in order; some hundred names for each process",
        fence="max(last + 1, server's clock in µs), in a row; falls only if a server that lost the last grants has a "
        "clock that is behind by more than the time between",
        wake="the server's own line for the lock",
        order="arrival; a waiter that has waited for 60 s lines up anew",
        freed="when its connection ends: at once after a crash, after about 30 s if its machine is cut off",
        waiter_crash=Bound(1.0, "PostgreSQL takes the waiter out of its queue when the connection ends."),
        client_pause=Promise(
            Effect.KEPT,
            "The connection stays, so nobody else gets the lock. A lease past its ttl is lost all the same.",
        ),
        client_crash=Promise(Effect.FREED, "At once: the server sees that the connection has ended."),
        server_restart=Promise(
            Effect.FENCED, "All session locks end; the holder sees that at once, or at the next heartbeat."
        ),
        failover=Promise(
            Effect.FENCED, "Session locks are not replicated: all end. A holder that is cut off learns it by its ttl."
        ),
        partition=Promise(
            Effect.FREED,
            "The holder is told after about 10 s, by its own system's keepalives, or when its ttl is over; the server "
            "gives the connection up after about 30 s.",
        ),
        clock_jump=Promise(Effect.KEPT, "No clock decides."),
        cannot={
            Ability.EXPIRY: "the lock lasts as long as its session; take postgresql:// for leases that end by time",
            Ability.HANDOVER: "the lock belongs to one session; take postgresql:// to hand a lease to another process",
            Ability.RECORDS: "the lock has no row of its own that a record could be in; take postgresql://",
            Ability.SEMAPHORE: "PostgreSQL counts no slots of a session lock; take postgresql:// for semaphores",
        },
    )

    def __init__(self, source: Source, namespace: str, runtime: Runtime, options: Options) -> None:
        self._runtime, self._shown, self._namespace = runtime, source.shown, namespace
        self._sessions = Sessions(source, runtime, options)
        sessions, held = self._sessions, AdvisoryLocks(self._sessions, runtime)
        self._held, self._losses = held, (losses := AdvisoryLosses(held, sessions, runtime))
        self._any_session = AnySession(sessions, losses)
        self._waiting = waiting = WaitingSessions(sessions, self._any_session, runtime)
        self._releases = AdvisoryReleases(held, sessions, losses, waiting, runtime)
        self._heartbeats = AdvisoryHeartbeats(held, sessions, losses, runtime)
        self._watch = watch = AdvisoryWatch(held, sessions, losses, waiting, self._releases, runtime)
        self._grants = AdvisoryGrants(held, sessions, losses, self._any_session, waiting, watch, runtime)
        self._mind_no_loop: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<PostgresAdvisoryStore {self._shown} namespace={self._namespace!r}>"

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Tell *call* when the server ends a session."""
        self._losses.tell = call

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Try the lock; who is refused and queues stands in the server's own line from then on."""
        until, wanted = self._runtime.now() + within, self._wanted(ask)
        if self._mind_no_loop is None:
            self._mind_no_loop = self._runtime.when_loop_closes(self._loop_closed)
        try:
            return await self._grants.grant(wanted, until)
        except OutcomeUnknown:
            # If its session has ended, nothing is held, and another may be tried.
            if self._held.may_have(ask.token) or until - self._runtime.now() < within / 2:
                raise
            return await self._grants.grant(wanted, until)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Ask each session who it is and what it has locked."""
        return await self._heartbeats.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Unlock, or step out of the line."""
        return await self._releases.release(token, self._runtime.now() + within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait until it is our turn in the server's line."""
        if not await self._waiting.wait(ask.token, time_to_look(within, busy)):
            await self._runtime.sleep(min(within, BLIND_LOOK * (0.8 + 0.4 * self._runtime.random())))

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """End the session that holds the grant with *fence*, and with it all it holds: there is no other way."""
        until, key = self._runtime.now() + within, advisory_key(self._namespace, name)
        by = signature(here(self._runtime.pid(), name, ""))
        values = (number(key), number(fence), text(reason), text(by))
        [rows] = await self._any_session.ask(until, [Call(sql.EVICT, values)])
        if not rows:
            return False
        backend, token = int(rows[0][0] or 0), rows[0][1] or ""
        ours = self._held.get(token)
        if ours is None:
            await self._end_session(backend, key, until, values[:2])
        elif await self._releases.release(token, until) is None:
            self._losses.lose(ours, LossReason.EVICTED)
        return True

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Those whose session has the lock."""
        until = self._runtime.now() + within
        [rows] = await self._any_session.ask(until, [Call(sql.HOLDERS, (text(self._namespace), text(prefix)))])
        return sorted(session_holders(rows), key=lambda holder: (holder.name, holder.fence))

    async def show(self, name: str, within: float) -> LockState:
        """The row, the server's line, the last eviction, and the sessions that have it."""
        until, key = self._runtime.now() + within, number(advisory_key(self._namespace, name))
        which = (key, text(self._namespace), text(name))
        waiting = Call(sql.WAITERS, (key, SHARED.token("").encode()))
        *found, who = await self._any_session.ask(until, [Call(sql.SHOW, which), waiting, Call(sql.WHO_HAS, which[:1])])
        have = session_holders(who, name)
        sharing = tuple(holder for holder in have if holder.share)
        return state(name, *found)._replace(holder=have[0] if have else None, sharing=sharing)

    async def detach(self, claim: Claim, within: float) -> None:
        """Impossible: the lock belongs to the session."""
        raise NotSupported(
            "a session lock of PostgreSQL ends with its connection and cannot be handed over; take postgresql://"
        )

    async def close(self) -> None:
        """End the sessions, and with them all that is still locked."""
        if self._mind_no_loop is not None:
            self._mind_no_loop()
        await self._watch.close()
        await self._waiting.tidy(self._runtime.now() + PARTING)
        self._sessions.close()
        self._held.limit.count(0)

    def inheritable(self) -> tuple[int, ...]:
        """The sockets of the sessions: while a child has them, the server sees no end of the connection."""
        return self._sessions.descriptors()

    def forked(self) -> None:
        """Begin anew in a forked child."""
        self._sessions.forked()
        for part in (self._held, self._losses, self._waiting, self._watch):
            part.begin()
        self._mind_no_loop = None

    def _loop_closed(self) -> None:
        """Nobody can renew or give back any more, but the connections would live: let go of what is locked in them."""
        for held in list(self._held.all.values()):
            self._losses.lose(held, LossReason.SESSION_ENDED)
        self._sessions.close()

    # ---------------------------------------------------------------------------------------------------------

    def _wanted(self, ask: Ask) -> Wanted:
        wait = self._waiting.all.get(ask.token)
        if wait is not None:  # made when it lined up: a hand-over has no time to lose
            return wait.wanted
        key, who = advisory_key(self._namespace, ask.name), here(self._runtime.pid(), ask.name, ask.note)
        me = (text(who.host), number(who.pid), text(who.user), text(ask.note))
        return Wanted(ask, key, (number(key), text(self._namespace), text(ask.name), ask.token.encode(), *me))

    async def _end_session(self, backend: int, key: int, until: float, grant: tuple[bytes, ...]) -> None:
        try:
            await self._terminate(backend, key, until)
        except StoreUnavailable as error:
            if getattr(error.__cause__, "sqlstate", "") != NOT_ALLOWED:
                raise
            await self._any_session.ask(until, [Call(sql.NOT_EVICTED, grant)])
            raise StoreUnavailable(
                self._shown,
                "the holder's session belongs to another user, and this user may not end it; let a superuser run: "
                "GRANT pg_signal_backend TO …, or break the lock as the user who holds it",
            ) from error.__cause__

    async def _terminate(self, backend: int, key: int, until: float) -> None:
        which, ask = (number(backend), number(key)), self._any_session.ask
        await self._runtime.sleep(max(0.0, min(TO_HEAR, until - self._runtime.now() - TO_HEAR)))
        await ask(until, [Call(sql.TERMINATE, which[:1])])
        while (await ask(until, [Call(sql.STILL_HELD, which)]))[0]:
            await self._runtime.sleep(LOOK_AGAIN)
