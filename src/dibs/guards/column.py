"""A guard in the data itself: the protected row has a column for the fence, and each write compares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dibs.core.checks import checked_fence, checked_name
from dibs.errors import GuardMissing, Misuse, StaleFence
from dibs.guards.on import OnConnection
from dibs.guards.table import explained
from dibs.ports.db.identifiers import identifier
from dibs.ports.db.session import Rows, Session, method_on_connection


class ColumnGuard:
    """Guards rows that carry their own fence, such as ``account (id, balance, fence BIGINT NOT NULL DEFAULT 0)``.

    *row* tells which row a lock's name stands for, as its key columns, and so keeps the fence of one name from
    passing for another: ``lambda name: {"id": int(name.removeprefix("account:"))}``.
    """

    def __init__(
        self,
        table: str,
        row: Callable[[str], Mapping[str, object]],
        *,
        column: str = "fence",
        one_shot: bool = False,
    ) -> None:
        self._table, self._column = identifier(table, "table"), identifier(column, "column")
        self._row, self._one_shot = row, one_shot

    @method_on_connection
    async def claim(self, conn: Session, name: str, fence: int) -> None:
        """Refuse all older fences of *name*'s row from now on; `StaleFence` if this is one."""
        await self._write(conn, name, fence, {})

    @method_on_connection
    async def write(self, conn: Session, name: str, fence: int, values: Mapping[str, object]) -> None:
        """Write *values*, by column, unless a newer fence was here: `StaleFence`. One statement does both."""
        if not values:
            raise Misuse("write() has no values to write; claim() shows the fence alone")
        await self._write(conn, name, fence, values)

    @method_on_connection
    async def check(self, conn: Session, name: str, fence: int) -> None:
        """Raise `StaleFence` if a newer fence was here: for what was read, before it is shown to anybody."""
        name, fence = checked_name(name), checked_fence(fence)
        kept = await self._kept(conn, name, locked=conn.begun())
        if kept > fence:
            raise StaleFence(name, fence, kept)

    @method_on_connection
    async def seal(self, conn: Session, name: str, fence: int) -> bool:
        """Refuse *fence* as well from now on; tell whether it was not refused anyway.

        The column then has the next number: no grant before the next has it, and the next has it or a higher one.
        """
        name, fence = checked_name(name), checked_fence(fence)
        if self._one_shot:
            return False
        key, values = self._key(name)
        sql = (
            f"UPDATE {self._table} SET {self._column} = :fence + 1 WHERE {key} AND {self._column} <= :fence RETURNING 1"
        )
        return bool(await self._rows(conn, name, sql, fence=fence, **values))

    def on(self, conn: object) -> OnConnection:
        """This guard on that connection, for ``lock.guarded(guard.on(conn))``."""
        return OnConnection(self, conn)

    def __repr__(self) -> str:
        return f"<ColumnGuard {self._table}.{self._column}>"

    async def _write(self, conn: Session, name: str, fence: int, values: Mapping[str, object]) -> None:
        name, fence = checked_name(name), checked_fence(fence)
        key, params = self._key(name)
        changes = [f"{self._column} = :fence"]
        for number, (column, value) in enumerate(values.items()):
            changes.append(f"{identifier(column, 'column')} = :value{number}")
            params[f"value{number}"] = value
        compare = "<" if self._one_shot else "<="
        sql = (
            f"UPDATE {self._table} SET {', '.join(changes)} WHERE {key} AND {self._column} {compare} :fence RETURNING 1"
        )
        if not await self._rows(conn, name, sql, fence=fence, **params):
            raise StaleFence(name, fence, await self._kept(conn, name))

    async def _kept(self, conn: Session, name: str, *, locked: bool = False) -> int:
        key, params = self._key(name)
        sql = f"SELECT {self._column} FROM {self._table} WHERE {key}"
        if locked and conn.product == "postgresql":
            sql += " FOR UPDATE"
        elif locked:  # SQLite has no such lock: a write that changes nothing is one
            sql = f"UPDATE {self._table} SET {self._column} = {self._column} WHERE {key} RETURNING {self._column}"
        found = await self._rows(conn, name, sql, **params)
        if not found:
            raise GuardMissing(name, f"the table {self._table} has no row {self._row(name)}")
        if found[0][0] is None:
            raise GuardMissing(name, f"{self._table}.{self._column} is NULL there; write 0, and make it NOT NULL")
        return int(found[0][0])

    def _key(self, name: str) -> tuple[str, dict[str, object]]:
        """The condition for the row of *name*, and its values."""
        columns = self._row(name)
        if not columns or None in columns.values():
            raise Misuse(f"row({name!r}) gave {columns!r}, which is the key of no row")
        condition = " AND ".join(f"{identifier(c, 'column')} = :key{i}" for i, c in enumerate(columns))
        return condition, {f"key{i}": value for i, value in enumerate(columns.values())}

    async def _rows(self, conn: Session, name: str, sql: str, **values: object) -> Rows:
        with explained(name, self._table, "it is the table of the data"):
            return await conn.rows(sql, **values)
