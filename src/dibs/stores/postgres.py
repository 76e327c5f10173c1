"""Grants leases from rows of a PostgreSQL table: one upsert takes a free lock, one update gives it back.

The statements, and why they are safe, are in `postgres_grant` and `postgres_keep`; which are sent when is in
`postgres_asking`; how they reach the server is in `dibs.ports`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, Record, here
from dibs.part import part_of
from dibs.ports.caller import Session
from dibs.ports.postgres import Port
from dibs.ports.postgres_ear import Ear
from dibs.ports.postgres_line import Line
from dibs.ports.postgres_source import Source, from_client, from_url
from dibs.ports.postgres_statement import Call, Statement
from dibs.ports.postgres_values import number, numbers, text, texts
from dibs.runtime import Runtime
from dibs.stores import postgres_keep as sql
from dibs.stores.guarantees import Effect, Guarantees, Promise
from dibs.stores.postgres_asking import Asking, who_broke
from dibs.stores.postgres_facts import holder, parts, state
from dibs.stores.postgres_options import Options, options_from
from dibs.stores.postgres_parts import HOLDERS as HOLDERS_OF_PARTS
from dibs.stores.postgres_parts import SHOW as SHOW_PARTS
from dibs.stores.postgres_records import Records, finish_on
from dibs.stores.postgres_schema import hello
from dibs.stores.postgres_sharing import Sharing
from dibs.stores.store import Ask, Busy, Claim, Grant, Store, settled

Answer: TypeAlias = LossReason | StoreUnavailable | None
"""What became of one claim, or why it is not known."""


def open_url(url: str, namespace: str, runtime: Runtime) -> PostgresStore:
    """Make the store for the database that *url* names."""
    source, options = from_url(url)
    return PostgresStore(source, namespace, runtime, options_from(options))


def open_client(client: object, namespace: str, runtime: Runtime) -> PostgresStore:
    """Make the store for the database that *client*, a pool or engine of the caller, connects to."""
    return PostgresStore(from_client(client, blocking=runtime.blocking), namespace, runtime, Options())


class PostgresStore(Store):
    """Leases in rows; see docs/stores/postgres.md."""

    guarantees: ClassVar[Guarantees] = Guarantees(
        name="postgresql",
        good_for="locks over many machines, where PostgreSQL runs already: any number of names, also through a pooler",
        fence="max(last + 1, server's clock in µs), in the row; falls only if a standby that lost the last grants "
        "has a clock that is behind by more than the time between",
        wake="a NOTIFY to the next in line alone; through a pooler that shares sessions, a look every 0.1 s",
        order="arrival; after 100 ms without an answer of the first, whoever asks",
        freed="after the ttl",
        client_pause=Promise(Effect.FENCED, "The lease ends by the server's clock, and another gets it."),
        client_crash=Promise(Effect.FREED, "After the ttl."),
        server_restart=Promise(Effect.KEPT, "A grant is on disk before it is given out (`synchronous_commit`)."),
        failover=Promise(
            Effect.FENCED,
            "An asynchronous standby may not have the last grants: two holders are possible. The fence rises by the "
            "clock. With a synchronous standby nothing is lost.",
        ),
        partition=Promise(Effect.FENCED, "The holder is told in time; others get the lock after the ttl."),
        clock_jump=Promise(Effect.FENCED, "A server's clock that jumps ahead ends leases early."),
    )
    shortest_ttl: ClassVar[float] = 0.05

    def __init__(self, source: Source, namespace: str, runtime: Runtime, options: Options) -> None:
        self._runtime, self._shown, self._namespace, self._options = runtime, source.shown, namespace, options
        self._told = False
        """Whether it was said that a pooler stands between."""
        self._port = Port(source, runtime, self._greet, options.connections)
        self._ear = Ear(self._port.open, runtime)
        self._asking = Asking(self._port, self._ear, runtime, namespace)
        self._sharing = Sharing(self._asking, runtime)
        self._records = Records(self._asking, runtime)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._shown} namespace={self._namespace!r}>"

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """One upsert if the lock is free and nobody waits; one transaction for a part."""
        until, part = self._runtime.now() + within, part_of(ask.token)
        try:
            return await (self._asking.grant(ask, until) if part is None else self._sharing.grant(ask, part, until))
        except OutcomeUnknown:
            # The connection broke, perhaps in the commit. The same token may ask again, and is told what became of it.
            if self._is_late(until, within):
                raise
            return await (self._asking.grant(ask, until) if part is None else self._sharing.grant(ask, part, until))

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """One statement for all; those whose row somebody else keeps locked are asked for once more, one by one."""
        if not claims:
            return []
        until = self._runtime.now() + within
        parts = [claim for claim in claims if part_of(claim.token) is not None]
        if parts:
            return await self._renew_with_parts(claims, parts, until, within)
        return settled(await self._renew_whole(claims, until, within))

    async def _renew_with_parts(
        self, claims: Sequence[Claim], parts: Sequence[Claim], until: float, within: float
    ) -> list[LossReason | None]:
        """One statement for the parts, and what is done for the others."""
        whole = [claim for claim in claims if part_of(claim.token) is None]
        fates = iter([self._fate(*row[1:]) for row in await self._sharing.renew(parts, until)])
        others = iter(await self._renew_whole(whole, until, within) if whole else [])
        return settled([next(others if part_of(claim.token) is None else fates) for claim in claims])

    async def _renew_whole(self, claims: Sequence[Claim], until: float, within: float) -> list[Answer]:
        try:
            answers = await self._renew(sql.RENEW_FREE, claims, until)
        except OutcomeUnknown:  # an idle connection had ended, perhaps; to renew twice is to renew
            if self._is_late(until, within):
                raise
            answers = await self._renew(sql.RENEW_FREE, claims, until)
        locked = [index for index, answer in enumerate(answers) if isinstance(answer, StoreUnavailable)]
        for done, index in enumerate(locked):
            share = (until - self._runtime.now()) / (len(locked) - done)
            answers[index] = await self._renew_one(claims[index], share)
        return answers

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
        await self._asking.wait(ask, min(within, busy.retry_in))

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Compare the fence and break the grant in one update."""
        until, asking = self._runtime.now() + within, self._asking
        by = who_broke(here(self._runtime.pid(), name, ""))
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
        return sorted([*map(holder, whole), *parts(several)], key=lambda holder: (holder.name, holder.fence))

    async def show(self, name: str, within: float) -> LockState:
        """The row, the queue, and the last eviction."""
        values = self._asking.name(name)
        calls = [Call(sql.SHOW, values), Call(sql.WAITERS, values), Call(SHOW_PARTS, values)]
        return state(name, *await self._port.do(self._runtime.now() + within, calls))

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Put this process's facts into the row."""
        until, asking = self._runtime.now() + within, self._asking
        if part_of(claim.token) is not None:
            return await self._sharing.attach(claim, note, until)
        values = (*asking.name(claim.name), claim.token.encode(), *asking.me(note))
        await self._port.do(until, [Call(sql.ATTACH, values)], token=claim.token)
        return None

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """One statement if there is a record, or the lock is free and nobody waits."""
        until = self._runtime.now() + within
        try:
            return await self._records.grant(ask, after, until)
        except OutcomeUnknown:  # see `grant`
            if until - self._runtime.now() < within / 2:
                raise
            return await self._records.grant(ask, after, until)

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One update."""
        return await self._records.remember(claim, data, keep, self._runtime.now() + within)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """One update, and one NOTIFY if somebody waits."""
        return await self._records.finish(claim, data, keep, self._runtime.now() + within)

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
        self._ear.forked()
        self._port.forked()

    # ---------------------------------------------------------------------------------------------------------

    def _is_late(self, until: float, within: float) -> bool:
        """Whether the time that is left is too short to ask again."""
        return until - self._runtime.now() < within / 2

    async def _release(self, name: str, token: str, until: float) -> LossReason | None:
        kind = self._asking if part_of(token) is None else self._sharing
        return await kind.release(name, token, until)

    async def _greet(self, line: Line, until: float) -> None:
        found, _ = await hello(line, self._shown, until)
        line.pooled = self._options.pooled(line.claimed_pid, found.pid)
        line.commit = self._options.synchronous_commit.encode()
        if line.pooled and not self._told:
            self._told = True
            _warn(self._shown)

    async def _renew(self, statement: Statement, claims: Sequence[Claim], until: float) -> list[Answer]:
        names, tokens = [claim.name for claim in claims], [claim.token for claim in claims]
        fences, ttls = [claim.fence for claim in claims], [claim.ttl for claim in claims]
        values = (self._asking.space, texts(names), texts(tokens), numbers(fences))
        [rows] = await self._port.do(until, [Call(statement, (*values, numbers(ttls)))])
        return [self._fate(*row[1:]) for row in rows]

    def _fate(self, renewed: str | None, ours: str | None, evicted: str | None, locked: str | None) -> Answer:
        if renewed == "t":
            return None
        if locked == "t":
            return StoreUnavailable(self._shown, "another transaction keeps the row of this lock")
        return LossReason.EVICTED if evicted == "t" else LossReason.EXPIRED if ours == "t" else LossReason.TAKEN

    async def _renew_one(self, claim: Claim, within: float) -> Answer:
        try:
            [answer] = await self._renew(sql.RENEW, [claim], self._runtime.now() + within)
        except StoreUnavailable as exc:
            return exc
        return answer


def _warn(shown: str) -> None:
    import logging  # noqa: PLC0415 - costs 4 ms at start, and is needed only here

    logging.getLogger("dibs").warning(
        "%s is reached through a pooler that may share sessions between transactions: nobody can be woken there, so "
        "whoever waits looks every 0.1 s. If it gives each client a session, add ?pooler=session to the URL",
        shown,
    )
