"""Grants leases from rows of a PostgreSQL table: one upsert takes a free lock, one update gives it back.

The statements, and why they are safe, are in `rows.grant` and `rows.lease`; which are sent when is in
`rows.asking`; how they reach the server is in `dibs.ports`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Sequence
from typing import ClassVar, TypeAlias

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, Record, here, signature
from dibs.log import logger
from dibs.ports.db.session import Session
from dibs.runtime import Driver, Runtime
from dibs.share import share_of
from dibs.stores.doubt import MARKED_FOR, Doubts
from dibs.stores.guarantees import Bound, Effect, Guarantees, Promise
from dibs.stores.postgres.facts import holder, shares, state
from dibs.stores.postgres.options import Options, options_from
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.listener import Ear
from dibs.stores.postgres.port.pool import Port
from dibs.stores.postgres.port.source import Source, from_client, from_url
from dibs.stores.postgres.port.statement import Call, Statement
from dibs.stores.postgres.port.values import number, text
from dibs.stores.postgres.rows import lease as sql
from dibs.stores.postgres.rows.asking import Asking, time_to_look
from dibs.stores.postgres.rows.grant import SWEEP_GONE
from dibs.stores.postgres.rows.records import Records, finish_on
from dibs.stores.postgres.rows.share_sql import HOLDERS as HOLDERS_OF_PARTS
from dibs.stores.postgres.rows.share_sql import SHOW as SHOW_PARTS
from dibs.stores.postgres.rows.shares import Sharing
from dibs.stores.postgres.schema import hello
from dibs.stores.record_store import RecordStore
from dibs.stores.store import Ask, Busy, Claim, Grant, settled

Answer: TypeAlias = LossReason | StoreUnavailable | None
"""What became of one claim, or why it is not known."""


LOCKED = "another transaction keeps the row of this lock"


def open_url(url: str, namespace: str, runtime: Runtime) -> PostgresStore:
    """Make the store for the database that *url* names."""
    source, options = from_url(url)
    return PostgresStore(source, namespace, runtime, options_from(options))


def open_client(client: object, namespace: str, runtime: Runtime) -> PostgresStore:
    """Make the store for the database that *client*, a pool or engine of the caller, connects to."""
    return PostgresStore(from_client(client, blocking=runtime.driver is Driver.BLOCKING), namespace, runtime, Options())


class PostgresStore(RecordStore):
    """Leases in rows; see docs/stores/postgres.md."""

    guarantees: ClassVar[Guarantees] = Guarantees(
        name="postgresql",
        good_for="locks over many machines, where PostgreSQL runs already: any number of names, also through a pooler",
        fence="max(last + 1, server's clock in µs), in the row; falls only if a standby that lost the last grants "
        "has a clock that is behind by more than the time between",
        wake="a NOTIFY to the next in line alone; through a pooler that shares sessions, a look every 0.1 s",
        order="arrival; after 100 ms without an answer of the first, whoever asks",
        freed="after the ttl",
        waiter_crash=Bound(
            2.0, "A release calls the first waiter; one that does not take the free lock is passed over."
        ),
        client_pause=Promise(Effect.FENCED, "The lease ends by the server's clock, and another gets it."),
        client_crash=Promise(Effect.FREED, "After the ttl."),
        server_restart=Promise(Effect.KEPT, "A grant is on disk before it is given out (`synchronous_commit`)."),
        failover=Promise(
            Effect.FENCED,
            "An asynchronous standby may not have the last grants: two holders are possible. The fence rises by the "
            "clock. With a synchronous standby nothing is lost.",
        ),
        partition=Promise(Effect.FENCED, "The holder is told in time; others get the lock after the ttl."),
        clock_jump=Promise(
            Effect.FENCED,
            "Setting the server's clock forward ends leases early. Setting it back makes them last longer by the same "
            "amount until the holder renews; a holder that died before that keeps the name for that time.",
        ),
    )
    shortest_ttl: ClassVar[float] = 0.05

    def __init__(self, source: Source, namespace: str, runtime: Runtime, options: Options) -> None:
        self._runtime, self._shown, self._namespace, self._options = runtime, source.shown, namespace, options
        self._told = False
        """Whether it was said that a pooler stands between."""
        self._port = Port(source, runtime, self._greet, options.connections)
        self._ear = Ear(self._port.open, runtime, [Call(SWEEP_GONE)])
        self._asking = Asking(self._port, self._ear, runtime, namespace)
        self._sharing = Sharing(self._asking, runtime)
        self._records = Records(self._asking, runtime)
        self._doubts = Doubts()

    def __repr__(self) -> str:
        return f"<PostgresStore {self._shown} namespace={self._namespace!r}>"

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One upsert if the lock is free and nobody waits; one transaction for a part."""
        until = self._runtime.now() + within
        try:
            return await self._doubts.of(ask.token, self._ask(ask, until))
        except OutcomeUnknown:
            # The connection broke, perhaps in the commit. The same token may ask again, and is told what became of it.
            if self._is_late(until, within):
                raise
            return await self._doubts.of(ask.token, self._ask(ask, until))

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One statement for all locks, and one for all parts; then those whose row somebody else keeps locked.

        When one is known to be lost nothing more is asked: that is told, and then the others are asked for again.
        """
        until = self._runtime.now() + within
        answers: list[Answer] = [StoreUnavailable(self._shown, "another lease was lost; this one is next")] * len(
            claims
        )
        shares = [claim.share is not None for claim in claims]
        for kind, step in ((False, self._renew_whole), (True, self._renew_shares)):
            mine = [index for index, share in enumerate(shares) if share is kind]
            if mine and not _lost(answers):
                await _fill(answers, mine, step([claims[index] for index in mine], until, within))
        locked = [index for index, answer in enumerate(answers) if _is_locked(answer)]
        for done, index in enumerate(locked):
            if not _lost(answers):
                bound = self._runtime.now() + (until - self._runtime.now()) / (len(locked) - done)
                await _fill(answers, [index], self._renew(sql.RENEW, [claims[index]], bound))
        return settled(answers)

    async def _renew_shares(self, claims: Sequence[Claim], until: float, within: float) -> list[Answer]:
        return [self._fate(*row[1:]) for row in await self._sharing.renew(claims, until)]

    async def _renew_whole(self, claims: Sequence[Claim], until: float, within: float) -> list[Answer]:
        try:
            return await self._renew(sql.RENEW_FREE, claims, until)
        except OutcomeUnknown:  # an idle connection had ended, perhaps; to renew twice is to renew
            if self._is_late(until, within):
                raise
            return await self._renew(sql.RENEW_FREE, claims, until)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """One update, and one NOTIFY if somebody waits."""
        until = self._runtime.now() + within
        try:
            return await self._release(name, token, until)
        except OutcomeUnknown:
            # An idle connection had ended, perhaps, and nothing was carried out. If it was, who asks again is told that
            # the token holds nothing, and nobody can say any more whether it did.
            if self._is_late(until, within):
                raise
            reason = await self._release(name, token, until)
            if reason in {None, LossReason.EVICTED}:
                return reason
            raise

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Wait for the NOTIFY."""
        await self._asking.wait(ask, min(time_to_look(within, busy), busy.retry_in))

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Compare the fence and break the grant in one update."""
        until, asking = self._runtime.now() + within, self._asking
        by = signature(here(self._runtime.pid(), name, ""))
        values = (*asking.name(name), number(fence), text(reason), text(by))
        [rows] = await self._port.do(until, [Call(sql.EVICT, values)])
        if rows and rows[0][0] == "t":
            await asking.wake(name, until)
        return bool(rows) or await self._sharing.evict(name, fence, reason, until)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Those whose lease runs."""
        values = (self._asking.space, text(prefix))
        calls = [Call(sql.HOLDERS, values), Call(HOLDERS_OF_PARTS, values)]
        whole, several = await self._port.do(self._runtime.now() + within, calls)
        return sorted([*map(holder, whole), *shares(several)], key=lambda holder: (holder.name, holder.fence))

    async def show(self, name: str, within: float) -> LockState:
        """The row, the queue, and the last eviction."""
        values = self._asking.name(name)
        calls = [Call(sql.SHOW, values), Call(sql.WAITERS, values), Call(SHOW_PARTS, values)]
        return state(name, *await self._port.do(self._runtime.now() + within, calls))

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Put this process's facts into the row."""
        until, asking = self._runtime.now() + within, self._asking
        if claim.share is not None:
            return await self._sharing.attach(claim, note, until)
        values = (*asking.name(claim.name), claim.token.encode(), *asking.me(note))
        await self._port.do(until, [Call(sql.ATTACH, values)], token=claim.token)
        return None

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """One statement if there is a record, or the lock is free and nobody waits."""
        until = self._runtime.now() + within
        try:
            return await self._doubts.of(ask.token, self._records.grant(ask, after, until))
        except OutcomeUnknown:  # see `grant`
            if self._is_late(until, within):
                raise
            return await self._doubts.of(ask.token, self._records.grant(ask, after, until))

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One update."""
        return await self._records.remember(claim, data, keep, self._runtime.now() + within)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One update, and one NOTIFY if somebody waits."""
        until = self._runtime.now() + within
        answer = await self._records.finish(claim, data, keep, until)
        if claim.token in self._doubts:
            with contextlib.suppress(StoreUnavailable):  # it is finished all the same
                await self._release(claim.name, claim.token, until)
        return answer

    async def finish_on(self, conn: Session, claim: Claim, data: bytes, keep: float) -> LossReason | None:
        """One update, on the caller's connection."""
        return await finish_on(conn, self._namespace, claim, data, keep)

    async def record(self, name: str, within: float) -> Record | None:
        """Read the row."""
        return await self._records.find(name, self._runtime.now() + within)

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """Read the rows, the latest first."""
        return await self._records.list(prefix, most, self._runtime.now() + within)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Compare the fence and empty the columns in one update."""
        return await self._records.forget(name, fence, self._runtime.now() + within)

    async def time(self, name: str, within: float) -> float:
        """The server's clock."""
        return await self._records.time(self._runtime.now() + within)

    async def close(self) -> None:
        """Close the connections."""
        self._ear.close()
        await self._port.close()

    def forked(self) -> None:
        """Begin anew in a forked child."""
        self._doubts.clear()
        self._ear.forked()
        self._port.forked()

    # ---------------------------------------------------------------------------------------------------------

    def _is_late(self, until: float, within: float) -> bool:
        """Whether the time that is left is too short to ask again."""
        return until - self._runtime.now() < within / 2

    async def _ask(self, ask: Ask, until: float) -> Grant | Busy:
        share = ask.share
        return await (self._asking.grant(ask, until) if share is None else self._sharing.grant(ask, share, until))

    async def _release(self, name: str, token: str, until: float) -> LossReason | None:
        kind = self._asking if share_of(token) is None else self._sharing
        if token not in self._doubts:
            return await kind.release(name, token, until)
        answer = await kind.release(name, token, until, MARKED_FOR)
        self._doubts.settled(token)
        return answer

    async def _greet(self, line: Line, until: float) -> None:
        found, _ = await hello(line, self._shown, self._options.pooler, until)
        line.pooled = self._options.pooled(line.claimed_pid, found.pid)
        line.commit = self._options.synchronous_commit.encode()
        if line.pooled and not self._told:
            self._told = True
            _warn(self._shown)

    async def _renew(self, statement: Statement, claims: Sequence[Claim], until: float) -> list[Answer]:
        [rows] = await self._port.do(until, [Call(statement, (self._asking.space, *sql.renewing(claims)))])
        return [self._fate(*row[1:]) for row in rows]

    def _fate(self, renewed: str | None, ours: str | None, evicted: str | None, locked: str | None) -> Answer:
        if renewed == "t":
            return None
        if locked == "t":
            return StoreUnavailable(self._shown, LOCKED)
        return LossReason.EVICTED if evicted == "t" else LossReason.EXPIRED if ours == "t" else LossReason.TAKEN


async def _fill(answers: list[Answer], indexes: list[int], step: Awaitable[list[Answer]]) -> None:
    """Put what *step* answers into *answers*; a failure is the answer for each of them."""
    try:
        found = await step
    except StoreUnavailable as error:
        found = [error] * len(indexes)
    for index, answer in zip(indexes, found, strict=True):
        answers[index] = answer


def _lost(answers: list[Answer]) -> bool:
    """Whether one of them says that a lease was lost."""
    return any(isinstance(answer, LossReason) for answer in answers)


def _is_locked(answer: Answer) -> bool:
    return isinstance(answer, StoreUnavailable) and answer.problem == LOCKED


def _warn(shown: str) -> None:
    logger().warning(
        "%s is reached through a pooler that may share sessions between transactions: nobody can be woken there, so "
        "whoever waits looks every 0.1 s. If it gives each client a session, add ?pooler=session to the URL",
        shown,
    )
