"""A guard in the database of the data: a table with one row for each name, in the caller's own transaction.

Each call is one statement that compares and writes, because a SELECT first and an UPDATE later has the gap that the
lock has. The row stays locked until the transaction ends, so that whoever comes with an older fence meanwhile waits,
looks again, and is refused.
"""

from __future__ import annotations

from dibs.errors import GuardMissing, Misuse
from dibs.guards.on import OnConnection
from dibs.guards.order import SEALED, Mark, checked_claim, checked_epoch, checked_write, explain, may_go_on, stale
from dibs.ports.db.errors import lost_a_race, no_such_table, not_allowed
from dibs.ports.db.identifiers import identifier
from dibs.ports.db.session import Rows, Session, method_on_connection

NEWER = "(g.epoch, g.fence) < (:epoch, :fence)"
SAME_AND_OPEN = f"((g.epoch, g.fence) = (:epoch, :fence) AND g.seq < {SEALED})"
LATER = "((g.epoch, g.fence) = (:epoch, :fence) AND g.seq < :seq)"

CLAIM = "epoch = :epoch, fence = :fence, seq = CASE WHEN (g.epoch, g.fence) = (:epoch, :fence) THEN g.seq ELSE 0 END"
WRITE = "epoch = :epoch, fence = :fence, seq = :seq, digest = :digest"
SEAL = f"epoch = :epoch, fence = :fence, seq = {SEALED}"
"""The SET of each step, as `dibs.guards.order` has it in Python."""


class TableGuard:
    """Guards with a table of its own, ``dibs_guard``, beside the data: ``guard.claim(conn, name, fence)``.

    *conn* is a connection of sqlite3, psycopg, asyncpg or Django, or a Connection or Session of SQLAlchemy; with one
    for async code each call is awaited. `create` makes the table, `add` the row of a name, once. A name without a row
    is refused with `GuardMissing`, because the row may have been deleted; with *create_rows* its first claim makes it.

    *one_shot* accepts a single claim or write of each grant. *epoch* is raised by one when the locks move to another
    store, whose fences may be lower. Locks of different namespaces that protect different things need two tables.
    """

    def __init__(
        self, *, table: str = "dibs_guard", create_rows: bool = False, one_shot: bool = False, epoch: int = 0
    ) -> None:
        self._table = identifier(table, "table")
        self._one_shot, self._epoch = one_shot, checked_epoch(epoch)
        self._create_rows = create_rows

    @property
    def sql(self) -> str:
        """The statement that makes the table."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self._table} (name TEXT PRIMARY KEY, epoch BIGINT NOT NULL DEFAULT 0, "
            "fence BIGINT NOT NULL DEFAULT 0, seq BIGINT NOT NULL DEFAULT 0, digest TEXT NOT NULL DEFAULT '')"
        )

    @method_on_connection
    async def create(self, conn: Session) -> None:
        """Make the table if it is not there."""
        await conn.rows(self.sql)

    @method_on_connection
    async def add(self, conn: Session, name: str) -> None:
        """Make the row of *name*, if it has none: once, where what it protects is created."""
        name, _ = checked_claim(self._epoch, name, 1)
        await self._rows(conn, name, f"INSERT INTO {self._table} (name) VALUES (:name) ON CONFLICT DO NOTHING")

    @method_on_connection
    async def claim(self, conn: Session, name: str, fence: int) -> None:
        """Refuse all older fences of *name* from now on; `StaleFence` if this is one.

        Call it before the first read, and first in each transaction that writes.
        """
        name, shown = checked_claim(self._epoch, name, fence)
        if not await self._raise_mark(conn, name, shown, CLAIM, self._newer_or(SAME_AND_OPEN)):
            raise stale(name, await self._kept(conn, name), shown)

    @method_on_connection
    async def write(self, conn: Session, name: str, fence: int, seq: int, digest: str = "") -> bool:
        """Tell whether write number *seq* of this grant shall be done now, in this transaction.

        False: it was done already, and this is a repeat. `StaleFence`: it is refused, for its fence or because a
        later write of the same grant was done. *digest*, some text, tells different writes with the same *seq* apart.
        """
        name, shown = checked_write(self._epoch, name, fence, seq, digest)
        if not await conn.lasts():
            raise Misuse("write() belongs into the transaction of the write, and this connection is in none")
        if await self._raise_mark(conn, name, shown, WRITE, self._newer_or(LATER)):
            return True
        explain(name, await self._kept(conn, name), shown)
        return False

    @method_on_connection
    async def check(self, conn: Session, name: str, fence: int) -> None:
        """Raise `StaleFence` if a newer fence was here: for what was read, before it is shown to anybody.

        In a transaction it keeps the answer true until the end, since newer claims wait. It locks the row for that,
        which a read-only transaction may not.
        """
        name, shown = checked_claim(self._epoch, name, fence)
        kept = await self._kept(conn, name, locked=conn.begun())
        if not may_go_on(kept, shown):
            raise stale(name, kept, shown)

    @method_on_connection
    async def seal(self, conn: Session, name: str, fence: int) -> bool:
        """Refuse *fence* as well from now on, for the end of a lease; tell whether it was not refused anyway."""
        name, shown = checked_claim(self._epoch, name, fence)
        if await self._raise_mark(conn, name, shown, SEAL, f"({NEWER} OR {SAME_AND_OPEN})"):
            return True
        await self._kept(conn, name)
        return False

    def on(self, conn: object) -> OnConnection:
        """This guard on that connection, for ``lock.guarded(guard.on(conn))``."""
        return OnConnection(self, conn)

    def __repr__(self) -> str:
        return f"<TableGuard {self._table}>"

    def _newer_or(self, same_grant: str) -> str:
        return NEWER if self._one_shot else f"({NEWER} OR {same_grant})"

    async def _raise_mark(self, conn: Session, name: str, shown: Mark, change: str, accepted: str) -> bool:
        """Compare and write, in one statement; whether it was accepted."""
        if self._create_rows:
            sql = (
                f"INSERT INTO {self._table} AS g (name, epoch, fence, seq, digest) "
                "VALUES (:name, :epoch, :fence, :first_seq, :digest) "
                f"ON CONFLICT (name) DO UPDATE SET {change} WHERE {accepted} RETURNING 1"
            )
        else:
            sql = f"UPDATE {self._table} AS g SET {change} WHERE g.name = :name AND {accepted} RETURNING 1"
        values = {**shown._asdict(), "first_seq": SEALED if change is SEAL else shown.seq}
        return bool(await self._rows(conn, name, sql, **values))

    async def _kept(self, conn: Session, name: str, *, locked: bool = False) -> Mark:
        """The mark in the row."""
        columns = "epoch, fence, seq, digest"
        sql = f"SELECT {columns} FROM {self._table} WHERE name = :name"
        if locked and conn.product == "postgresql":
            sql += " FOR UPDATE"
        elif locked:  # SQLite has no such lock: a write that changes nothing is one
            sql = f"UPDATE {self._table} SET seq = seq WHERE name = :name RETURNING {columns}"
        found = await self._rows(conn, name, sql)
        if not found and self._create_rows:
            return Mark()
        if not found:
            raise GuardMissing(name, f"the table {self._table} has no row for it; make one with add(conn, {name!r})")
        return Mark(*found[0])

    async def _rows(self, conn: Session, name: str, sql: str, **values: object) -> Rows:
        with explained(name, self._table, "make it with create(conn)"):
            return await conn.rows(sql, **values, name=_stored(name))


class explained:  # noqa: N801 - it reads as a word
    """What the database says of a guard's statement, with what it means here."""

    def __init__(self, name: str, table: str, advice: str) -> None:
        self._name, self._table, self._advice = name, table, advice

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if no_such_table(error):
            raise GuardMissing(self._name, f"there is no table {self._table}; {self._advice}") from error
        if not_allowed(error):
            error.add_note(
                f"the user of this connection lacks a right; let the owner of {self._table} run: "
                f"GRANT SELECT, INSERT, UPDATE ON {self._table} TO …"
            )
        if lost_a_race(error):
            error.add_note(
                f"the guard of {self._name!r} was changed by another since this transaction began: run it again, and "
                "the fence is accepted, or StaleFence tells the current one; dibs.optimistic.retry does that"
            )


def _stored(name: str) -> str:
    """The name as it stands in the row: Postgres has no text with NUL."""
    return name.replace("%", "%25").replace("\0", "%00")
