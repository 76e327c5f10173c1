"""Grants session locks of PostgreSQL: advisory locks, which the server frees when the session that has them ends.

There is no ttl at the server. Here a lease ends when no heartbeat on its own session was answered for its ttl, and
then the lock is given back, or the session closed: on any doubt the session is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from dibs.errors import LossReason, NotSupported, OutcomeUnknown
from dibs.holder import Holder, LockState, here
from dibs.part import SHARED
from dibs.ports.postgres_source import Source, from_url
from dibs.ports.postgres_statement import Call
from dibs.ports.postgres_values import number, text
from dibs.runtime import Runtime
from dibs.stores import postgres_lock as sql
from dibs.stores.guarantees import Ability, Effect, Guarantees, Promise
from dibs.stores.postgres_asking import who_broke
from dibs.stores.postgres_facts import parts, state
from dibs.stores.postgres_holding import Wanted
from dibs.stores.postgres_holdings import Holdings
from dibs.stores.postgres_key import advisory_key
from dibs.stores.postgres_options import Options, options_from
from dibs.stores.postgres_sessions import Sessions
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

BLIND_LOOK = 0.1
"""Seconds between two tries of one for whom there was no session left to stand in line."""

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
        self._holdings = Holdings(self._sessions, runtime)
        self._tell = self._holdings.endings.tell

    def __repr__(self) -> str:
        return f"<PostgresAdvisoryStore {self._shown} namespace={self._namespace!r}>"

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Tell *call* when the server ends a session."""
        self._tell = self._holdings.endings.tell = call

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Try the lock; who is refused and queues stands in the server's own line from then on."""
        until, wanted = self._runtime.now() + within, self._wanted(ask)
        try:
            return await self._holdings.grant(wanted, until)
        except OutcomeUnknown:
            # If its session has ended, nothing is held, and another may be tried.
            if self._holdings.may_have(ask.token) or until - self._runtime.now() < within / 2:
                raise
            return await self._holdings.grant(wanted, until)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Ask each session who it is and what it has locked."""
        return await self._holdings.endings.renew(claims, self._runtime.now() + within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Unlock, or step out of the line."""
        return await self._holdings.release(token, self._runtime.now() + within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait until it is our turn in the server's line."""
        if not await self._holdings.places.wait(ask.token, within):
            await self._runtime.sleep(min(within, BLIND_LOOK * (0.8 + 0.4 * self._runtime.random())))

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """End the session that holds the grant with *fence*, and with it all it holds: there is no other way."""
        until, key = self._runtime.now() + within, advisory_key(self._namespace, name)
        by = who_broke(here(self._runtime.pid(), name, ""))
        values = (number(key), number(fence), text(reason), text(by))
        [rows] = await self._holdings.ask(until, [Call(sql.EVICT, values)])
        if not rows:
            return False
        backend, token = int(rows[0][0] or 0), rows[0][1] or ""
        ours = self._holdings.get(token)
        if ours is None:
            await self._terminate(backend, key, until)
        elif await self._holdings.release(token, until) is None:
            self._holdings.endings.lose(ours, LossReason.EVICTED)
        return True

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Those whose session has the lock."""
        until = self._runtime.now() + within
        [rows] = await self._holdings.ask(until, [Call(sql.HOLDERS, (text(self._namespace), text(prefix)))])
        return sorted(parts(rows), key=lambda holder: (holder.name, holder.fence))

    async def show(self, name: str, within: float) -> LockState:
        """The row, the server's line, the last eviction, and those who share it."""
        until, key = self._runtime.now() + within, number(advisory_key(self._namespace, name))
        which = (key, text(self._namespace), text(name))
        waiting = Call(sql.WAITERS, (key, SHARED.token("").encode()))
        return state(name, *await self._holdings.ask(until, [Call(sql.SHOW, which), waiting, Call(sql.SHARES, which)]))

    async def detach(self, claim: Claim, within: float) -> None:
        """Impossible: the lock belongs to the session."""
        raise NotSupported(
            "a session lock of PostgreSQL ends with its connection and cannot be handed over; take postgresql://"
        )

    async def close(self) -> None:
        """End the sessions, and with them all that is still locked."""
        await self._holdings.endings.close()
        self._sessions.close()
        self._holdings.cap.count(0)

    def inheritable(self) -> tuple[int, ...]:
        """The sockets of the sessions: while a child has them, the server sees no end of the connection."""
        return self._sessions.descriptors()

    def forked(self) -> None:
        """Begin anew in a forked child."""
        self._sessions.forked()
        self._holdings.begin()
        self._holdings.endings.tell = self._tell

    # ---------------------------------------------------------------------------------------------------------

    def _wanted(self, ask: Ask) -> Wanted:
        wait = self._holdings.places.all.get(ask.token)
        if wait is not None:  # made when it lined up: a hand-over has no time to lose
            return wait.wanted
        key, who = advisory_key(self._namespace, ask.name), here(self._runtime.pid(), ask.name, ask.note)
        me = (text(who.host), number(who.pid), text(who.user), text(ask.note))
        return Wanted(ask, key, (number(key), text(self._namespace), text(ask.name), ask.token.encode(), *me))

    async def _terminate(self, backend: int, key: int, until: float) -> None:
        which, ask = (number(backend), number(key)), self._holdings.ask
        await ask(until, [Call(sql.TERMINATE, which[:1])])
        while (await ask(until, [Call(sql.STILL_HELD, which)]))[0]:
            await self._runtime.sleep(LOOK_AGAIN)
