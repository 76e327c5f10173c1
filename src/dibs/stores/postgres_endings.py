"""How the locks of a session end without being given back: heartbeats, a socket that ends, a ttl that is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dibs.errors import LossReason, StoreUnavailable
from dibs.ports.postgres_session import Session
from dibs.ports.postgres_statement import Call, Transaction
from dibs.ports.postgres_values import numbers, texts
from dibs.runtime import Event, Job, Runtime
from dibs.stores import postgres_lock as sql
from dibs.stores import postgres_mode as mode
from dibs.stores.store import Claim, settled

if TYPE_CHECKING:
    from dibs.stores.postgres_holding import Holding
    from dibs.stores.postgres_holdings import Holdings

Answer = LossReason | StoreUnavailable | None

FINDING_OUT = 0.5
"""Seconds for asking why a session ended, before its leases are told."""

RESERVED = 0.2
"""Seconds for which a lock that the server gave to one of our waiters is kept for it: it may stand still."""

NAP = 1.0
"""Seconds after which the watch looks at the clock again."""

IDLE = 20
"""Naps without a lock after which the watch ends: it costs nothing to keep, and 0.1 ms to begin."""

REMEMBERED = 10_000
"""Tokens whose loss is remembered until somebody asks."""


class Endings:
    """Watches the sessions of one client while something is locked in them."""

    def __init__(self, holdings: Holdings, runtime: Runtime) -> None:
        self._holdings, self._runtime = holdings, runtime
        self._mutex = runtime.mutex()
        self.reasons: dict[str, LossReason] = {}
        """Why a token lost its lock; forgotten when its owner asks."""
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Who wants to know at once."""
        self._ending: dict[Session, Event] = {}
        self._job: Job | None = None
        self._closed = False

    # --- heartbeats --------------------------------------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Ask each session who it is and what it has locked."""
        answers: list[Answer] = [None] * len(claims)
        by_session: dict[Session, list[int]] = {}
        for index, claim in enumerate(claims):
            held = self._holdings.get(claim.token)
            if held is not None and held.fence == claim.fence and held.name == claim.name:
                by_session.setdefault(held.session, []).append(index)
            else:
                answers[index] = self.reasons.get(claim.token, LossReason.TAKEN)
        for session, indexes in by_session.items():
            for index, answer in zip(
                indexes, await self._heartbeat(session, [claims[i] for i in indexes], until), strict=True
            ):
                answers[index] = answer
        return settled(answers)

    async def _heartbeat(self, session: Session, claims: Sequence[Claim], until: float) -> list[Answer]:
        try:
            rows, *still_in = await session.run(until, [Call(sql.HEARTBEAT)], *self._sharing(claims))
        except StoreUnavailable as error:
            if not session.ended:
                return [error] * len(claims)
            await self.end(session)
            return [self.reasons.get(claim.token, LossReason.SESSION_ENDED) for claim in claims]
        if rows[0][0] != str(
            session.pid
        ):  # another session answers in its place: a pooler, or a driver that reconnects
            await self.end(session)
            return [LossReason.SESSION_ENDED] * len(claims)
        locked = {(int(key), lock) for _, key, lock in rows if key is not None}
        inside = {row[0] for row in still_in[0]} if still_in else set()
        return [self._beat(claim, locked, inside) for claim in claims]

    def _sharing(self, claims: Sequence[Claim]) -> list[Transaction]:
        """Where several have one lock together, it does not tell whose it is still."""
        held = [held for claim in claims if mode.shares(claim.token) and (held := self._holdings.get(claim.token))]
        if not held:
            return []
        return [[Call(mode.STILL_IN, (numbers([each.key for each in held]), texts([each.token for each in held])))]]

    def _beat(self, claim: Claim, locked: set[tuple[int, str | None]], inside: set[str | None]) -> Answer:
        held = self._holdings.get(claim.token)
        if held is None or held.given_back:
            return self.reasons.get(claim.token, LossReason.TAKEN)
        token, lock = claim.token, (held.key, mode.mode(claim.token))
        if lock not in locked or (mode.shares(token) and token not in inside):  # our session was unlocked by somebody
            self._holdings.drop(token)
            return LossReason.TAKEN
        held.ends_at = max(held.ends_at, self._runtime.now() + claim.ttl)
        return None

    # --- the end of a session ----------------------------------------------------------------------------------

    async def end(self, session: Session) -> None:
        """*session* is over, or has to be: close it, and tell those who have something locked in it."""
        with self._mutex:
            ending = self._ending.get(session)
            if ending is None:
                mine = self._ending[session] = self._runtime.event()
        if ending is not None:
            await ending.wait(2 * FINDING_OUT)
            return
        try:
            lost = [held for held in list(self._holdings.all.values()) if held.session is session]
            self._holdings.sessions.drop(session)
            evicted = await self._evicted([held.token for held in lost if held.fence])
            for held in lost:
                self.lose(held, LossReason.EVICTED if held.token in evicted else LossReason.SESSION_ENDED)
        finally:
            self._ending.pop(session, None)
            mine.set()

    def lose(self, held: Holding, reason: LossReason) -> None:
        """*held* is over."""
        self._holdings.drop(held.token)
        if not held.fence:
            return
        self._remember(held.token, reason)
        if self.tell is not None:
            self.tell(held.name, held.token, reason)

    def _remember(self, token: str, reason: LossReason) -> None:
        while len(self.reasons) >= REMEMBERED:
            self.reasons.pop(next(iter(self.reasons)))
        self.reasons[token] = reason

    async def _evicted(self, tokens: list[str]) -> set[str]:
        """Which of them somebody broke on purpose, if that can be found out."""
        if not tokens:
            return set()
        until = self._runtime.now() + FINDING_OUT
        try:
            desk = await self._holdings.sessions.main(until)
            [rows] = await desk.run(until, [Call(sql.EVICTED, (texts(tokens),))])
        except StoreUnavailable:
            return set()
        return {row[0] or "" for row in rows}

    # --- the watch ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watch the sockets and the clock, until nothing has been locked for a while."""
        if self._job is not None:
            return
        with self._mutex:
            if self._job is None and not self._closed:
                self._job = self._runtime.spawn(self._run, "dibs sessions")

    async def close(self) -> None:
        """Stop watching, and stepping out of lines: a session that is closed while it waits stays there for seconds."""
        until = self._runtime.now() + FINDING_OUT
        for token in list(self._holdings.places.all):
            await self._holdings.places.step_out(token, until)
        self._closed = True
        wire, job = self._holdings.sessions.tripwire, self._job
        if wire is not None:
            wire.wake()
        if job is not None:
            await job.join(2 * FINDING_OUT)

    async def _run(self) -> None:
        idle = 0
        try:
            while not self._closed and idle < IDLE:
                await self._nap()
                await self._look()
                idle = 0 if self._holdings.all or self._holdings.places.all else idle + 1
        finally:
            self._job = None

    async def _nap(self) -> None:
        now, wire = self._runtime.now(), self._holdings.sessions.tripwire
        ends = [held.ends_at for held in list(self._holdings.all.values())]
        nap = max(0.01, min([RESERVED if self._holdings.places.all else NAP, *(end - now for end in ends)]))
        if wire is None:
            await self._runtime.sleep(nap)
        else:
            await self._runtime.readable(wire.fd, nap)

    async def _look(self) -> None:
        wire = self._holdings.sessions.tripwire
        ended = set(wire.ended()) if wire is not None else set()
        for session in self._holdings.sessions.known:
            if session.line.fd in ended and not self._closed:
                session.line.broken = True
                await self.end(session)
        for held in list(self._holdings.all.values()):
            if held.ends_at <= self._runtime.now() and not self._closed:
                await self._give_up(held)
        for token, wait in list(self._holdings.places.all.items()):
            if self._closed or wait.session.attended or not wait.session.answered():
                continue
            if wait.called_at is None:
                wait.called_at = self._runtime.now()
            elif self._runtime.now() >= wait.called_at + RESERVED:
                await self._holdings.places.step_out(token, self._runtime.now() + FINDING_OUT)

    async def _give_up(self, held: Holding) -> None:
        """Its lease is over, and nobody gave it back: unlock it, or end the session."""
        try:
            await self._holdings.release(held.token, self._runtime.now() + FINDING_OUT)
        except StoreUnavailable:
            await self.end(held.session)
        else:
            self._remember(held.token, LossReason.EXPIRED)
