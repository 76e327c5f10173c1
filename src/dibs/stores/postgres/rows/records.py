"""The records of the PostgreSQL rows: columns in the row of the lock, and which statements read and write them.

The row of the name arbitrates: who takes the lock and who writes the record both have it locked, and whoever waited
for it looks at its newest version.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from contextlib import suppress

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.holder import Record
from dibs.ports.db.errors import no_such_table
from dibs.ports.db.session import Session
from dibs.runtime import Runtime
from dibs.stores.postgres.port.statement import Call, Row, Statement
from dibs.stores.postgres.port.values import number, original, text
from dibs.stores.postgres.rows.asking import Asking
from dibs.stores.postgres.rows.grant import DECIDE, MICROS, NOW, TAKE, moment, was_broken
from dibs.stores.store import Ask, Busy, Claim, Grant

SWEEP_ONE_IN = 50
"""One of so many that write a record also deletes some that are over."""

SWEPT = 200
"""Rows that one sweep deletes at most: more than were written since the last one."""

HOUR = 3_600_000_000
"""µs since its last grant before a row is deleted with its record: the clock has passed its fence by so much."""

RECORDED = f"coalesce(l.record_fence > {{after}}::bigint AND l.record_ends_at > {NOW}, false)"


def _changed(name: str, statement: Statement, old: str, new: str) -> Statement:
    """*statement* with more in it; what is replaced has to be there."""
    sql = statement.sql.decode()
    assert sql.count(old) == 1, (old, sql)
    return Statement(name, sql.replace(old, new))


_RECORD = f"""l.name, l.record_fence, encode(l.record, 'hex'), {moment("l.record_at")},
    extract(epoch FROM least(l.record_ends_at, {NOW} + interval '100 years') - {NOW})::float8"""


def _take() -> Statement:
    """The upsert, and before it a look: where there is a record nothing is locked, and nothing written.

    The condition of the update looks once more: it sees the newest version of the row, also after a wait for it.
    """
    sql = TAKE.sql.decode()
    for old, new in (
        ("VALUES ($1, $2, $3,", "SELECT $1::text, $2::text, $3::text,"),
        ("$5, $6::int, $7, $8)", "$5::text, $6::int, $7::text, $8::text WHERE NOT EXISTS (SELECT FROM found)"),
        ("WHERE NOT l.waiting", f"WHERE NOT {RECORDED.format(after='$9')} AND NOT l.waiting"),
    ):
        assert sql.count(old) == 1, (old, sql)
        sql = sql.replace(old, new)
    found = f"""SELECT {_RECORD} FROM dibs_lease AS l
        WHERE namespace = $1 AND name = $2 AND {RECORDED.format(after="$9")}"""
    return Statement(
        "take_unless",
        f"""WITH found (name, fence, data, at, ends) AS ({found}), taken AS ({sql})
        SELECT name, fence, data, at, ends FROM found UNION ALL SELECT NULL, fence, NULL, NULL, NULL FROM taken""",
    )


TAKE_UNLESS_RECORDED = _take()

DECIDE_UNLESS_RECORDED = _changed(
    "decide_unless", DECIDE, "OR l.fence <", f"OR NOT {RECORDED.format(after='$9')} AND l.fence <"
)

FIND = Statement(
    "record",
    f"SELECT {_RECORD} FROM dibs_lease AS l WHERE namespace = $1 AND name = $2 AND {RECORDED.format(after='$3')}",
)

CLOCK = Statement("clock", f"SELECT extract(epoch FROM {NOW})")

LIST = Statement(
    "records",
    f"""SELECT {_RECORD} FROM dibs_lease AS l WHERE namespace = $1 AND name >= $2 AND starts_with(name, $2)
        AND record_ends_at > {NOW} ORDER BY record_at DESC, record_fence DESC LIMIT $3::int""",
)

_WRITE = f"""UPDATE dibs_lease AS l SET record = decode($6, 'hex'), record_fence = l.fence, record_token = l.token,
        record_at = {NOW}, record_ends_at = {NOW} + $5::float8 * interval '1 second'{{and_more}}
    WHERE namespace = $1 AND name = $2 AND token = $3 AND fence = $4::bigint AND ends_at > {NOW}
    RETURNING waiting"""

REMEMBER = Statement("remember", _WRITE.format(and_more=""))

FINISH = Statement("finish", _WRITE.format(and_more=f", token = NULL, ends_at = {NOW}"))

WHY_NOT = Statement(
    "unwritten",
    f"""SELECT record_token = $3 AND record_fence = $4::bigint AND record = decode($5, 'hex'), token = $3,
        {was_broken("$3", "l")} FROM dibs_lease AS l WHERE namespace = $1 AND name = $2""",
)

# The same in a transaction of the caller's, on its own connection. The row stays locked until the commit, so that
# nobody takes the lock in between, however long that lasts.
FINISH_ON = f"""UPDATE dibs_lease AS l SET record = CAST(:data AS bytea), record_fence = l.fence,
        record_token = l.token, record_at = {NOW}, record_ends_at = {NOW} + CAST(:keep AS float8) * interval '1 second',
        token = NULL, ends_at = {NOW}
    WHERE namespace = :namespace AND name = :name AND token = :token AND fence = CAST(:fence AS bigint)
        AND ends_at > {NOW}
    RETURNING 1"""

WRITTEN_ON = """SELECT record_token = :token AND record_fence = CAST(:fence AS bigint) AND record = CAST(:data AS bytea)
    FROM dibs_lease WHERE namespace = :namespace AND name = :name"""

_NO_RECORD = "record = NULL, record_fence = NULL, record_token = NULL, record_at = NULL, record_ends_at = NULL"

FORGET = Statement(
    "forget",
    f"""UPDATE dibs_lease AS l SET {_NO_RECORD} WHERE namespace = $1 AND name = $2 AND record_fence = $3::bigint
        AND record_ends_at > {NOW} RETURNING 1""",
)

SWEEP = Statement(
    "sweep",
    f"""DELETE FROM dibs_lease AS d USING (
        SELECT l.namespace, l.name FROM dibs_lease AS l WHERE l.record_ends_at <= {NOW} AND NOT l.waiting
            AND (l.token IS NULL OR l.ends_at <= {NOW}) AND l.fence < {MICROS} - {HOUR}
        ORDER BY l.record_ends_at LIMIT {SWEPT} FOR UPDATE SKIP LOCKED) AS over
    WHERE d.namespace = over.namespace AND d.name = over.name""",
)


class Records:
    """The records of one namespace, as one client asks for them."""

    def __init__(self, asking: Asking, runtime: Runtime) -> None:
        self._asking, self._runtime = asking, runtime

    async def grant(self, ask: Ask, after: int, until: float) -> Grant | Busy | Record:
        """One statement if there is a record, or the lock is free and nobody waits; else a look, or a decision."""
        if not ask.queue:
            found = await self._take(ask, after, until) or await self._look(ask, after, until)
            if found is not None:
                return found
        return (
            await self._decide(ask, after, until)
            or await self._take(ask, after, until)
            or await self._insist(ask, after, until)
        )

    async def remember(self, claim: Claim, data: bytes, keep: float, until: float) -> LossReason | None:
        """One update."""
        _, reason = await self._write(REMEMBER, claim, data, keep, until)
        return reason

    async def finish(self, claim: Claim, data: bytes, keep: float, until: float) -> LossReason | None:
        """One update and a look, and one NOTIFY if somebody waits."""
        waiting, reason = await self._write(FINISH, claim, data, keep, until)
        if waiting:
            await self._asking.wake(claim.name, until)
        if self._runtime.random() < 1 / SWEEP_ONE_IN:
            with suppress(StoreUnavailable):  # the record is there; this is for the disk space of others
                await self._asking.port.do(until, [Call(SWEEP)])
        return reason

    async def find(self, name: str, until: float) -> Record | None:
        """The record of *name*."""
        [rows] = await self._asking.port.do(until, [Call(FIND, (*self._asking.name(name), number(-1)))])
        return _shown(rows[0]) if rows else None

    async def time(self, until: float) -> float:
        """Ask the server."""
        [rows] = await self._asking.port.do(until, [Call(CLOCK, ())])
        return float(rows[0][0] or 0)

    async def list(self, prefix: str, most: int, until: float) -> list[Record]:
        """The latest, the latest first."""
        values = (self._asking.space, text(prefix), number(most))
        [rows] = await self._asking.port.do(until, [Call(LIST, values)])
        return [_shown(row) for row in rows]

    async def forget(self, name: str, fence: int, until: float) -> bool:
        """One update."""
        [rows] = await self._asking.port.do(until, [Call(FORGET, (*self._asking.name(name), number(fence)))])
        return bool(rows)

    async def _take(self, ask: Ask, after: int, until: float) -> Grant | Record | None:
        values = (*self._asking.taking(ask), number(after))
        [rows] = await self._asking.port.do(until, [Call(TAKE_UNLESS_RECORDED, values)], token=ask.token)
        if not rows:
            return None
        return Grant(int(rows[0][1] or 0), ask.ttl) if rows[0][0] is None else _shown(rows[0])

    async def _look(self, ask: Ask, after: int, until: float) -> Busy | Record | None:
        """The record, or who else has it; None if that takes a decision."""
        found = Call(FIND, (*self._asking.name(ask.name), number(after)))
        records, rows = await self._asking.port.do(until, [found, self._asking.answer(ask)], token=ask.token)
        return _shown(records[0]) if records else self._asking.held_by_another(ask, rows)

    async def _decide(self, ask: Ask, after: int, until: float) -> Grant | Busy | Record | None:
        """Grant, queue or recall while the row is locked; None if there is no row."""
        asked = await self._asking.decision(ask, until)
        decision = [
            Call(DECIDE_UNLESS_RECORDED, (*call.values, number(after))) if call.statement is DECIDE else call
            for call in asked
        ]
        found = Call(FIND, (*self._asking.name(ask.name), number(after)))
        *rows, records = await self._asking.port.do(until, [*decision, found], token=ask.token)
        return _shown(records[0]) if records else self._asking.decided(ask, rows)

    async def _insist(self, ask: Ask, after: int, until: float) -> Grant | Busy | Record:
        answer = await self._decide(ask, after, until)
        if answer is None:
            raise self._asking.row_is_gone(ask)
        return answer

    async def _write(
        self, statement: Statement, claim: Claim, data: bytes, keep: float, until: float
    ) -> tuple[bool, LossReason | None]:
        """Whether somebody waits, and why it was not written; in one request, since what is known is told."""
        mine = (*self._asking.name(claim.name), claim.token.encode(), number(claim.fence))
        content = data.hex().encode()
        calls = [Call(statement, (*mine, number(keep), content)), Call(WHY_NOT, (*mine, content))]
        written, why = await self._asking.port.do(until, calls, token=claim.token)
        if written:
            return written[0][0] == "t", None
        there, ours, evicted = why[0] if why else (None, None, None)
        if there == "t":  # its answer was lost, and it asks again
            return False, None
        return False, LossReason.EVICTED if evicted == "t" else LossReason.EXPIRED if ours == "t" else LossReason.TAKEN


async def finish_on(conn: Session, namespace: str, claim: Claim, data: bytes, keep: float) -> LossReason | None:
    """Write the record, and give the lock back, when the transaction that *conn* is in is committed."""
    if conn.product != "postgresql":
        raise Misuse(f"the store is in PostgreSQL, and the connection is one of {conn.product}: they share no commit")
    mine = {
        "namespace": text(namespace).decode(),
        "name": text(claim.name).decode(),
        "token": claim.token,
        "fence": claim.fence,
        "data": data,
    }
    try:
        if await conn.rows(FINISH_ON, **mine, keep=keep) or await conn.rows(WRITTEN_ON, **mine) == [(True,)]:
            return None
    except Exception as error:
        if no_such_table(error):
            raise Misuse(
                "there is no table dibs_lease where this connection looks: the store has to be in the same database, "
                "and in a schema of the connection's search_path"
            ) from error
        raise
    return LossReason.TAKEN


def _shown(row: Row) -> Record:
    name, fence, data, at, left = row
    return Record(original(name), int(fence or 0), bytes.fromhex(data or ""), float(at or 0), float(left or 0))
