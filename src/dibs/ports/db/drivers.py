"""Connections of the database drivers themselves: sqlite3, psycopg in both colours, asyncpg."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dibs.ports.db.session import Rows, Session, with_names, with_numbers

LEGACY = -1
"""``sqlite3.LEGACY_TRANSACTION_CONTROL``, of Python 3.12."""


class Sqlite(Session):
    """A `sqlite3.Connection`."""

    product = "sqlite"
    blocking = True

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it on a cursor of our own: the caller's rows may be made by a factory."""
        cursor = self._conn.cursor()
        cursor.row_factory = None
        found: Rows = cursor.execute(sql, values).fetchall()
        return found

    def begun(self) -> bool:
        """As the connection says."""
        return bool(self._conn.in_transaction)

    async def lasts(self) -> bool:
        """Also when the module begins a transaction before the first write."""
        return self.begun() or begins_by_itself(self._conn)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """IMMEDIATE: one that reads first and writes later fails at once if another wrote between."""
        self._conn.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._conn.execute("ROLLBACK")
            raise
        self._conn.execute("COMMIT")  # commit() does nothing if the module was told to keep out


def begins_by_itself(conn: Any) -> bool:
    """Whether a connection in the shape of sqlite3's begins a transaction when the caller did not."""
    autocommit = getattr(conn, "autocommit", LEGACY)
    return conn.isolation_level is not None if autocommit == LEGACY else not autocommit


class Psycopg(Session):
    """A `psycopg.Connection`."""

    product = "postgresql"
    blocking = True

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it on a cursor of our own: the caller's cursors and rows may be of any kind."""
        with self._cursor() as cursor:
            cursor.execute(with_names(sql), values)
            found: Rows = cursor.fetchall() if cursor.description else []
            return found

    def _cursor(self) -> Any:
        import psycopg  # noqa: PLC0415 - it has a connection, so it is there

        kind = psycopg.Cursor if self.blocking else psycopg.AsyncCursor
        return kind(self._conn, row_factory=psycopg.rows.tuple_row)

    def begun(self) -> bool:
        """As the connection says; a failed transaction is one too."""
        return bool(self._conn.info.transaction_status)

    async def lasts(self) -> bool:
        """Also when psycopg begins a transaction before the first statement."""
        return self.begun() or not self._conn.autocommit

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block of psycopg's."""
        with self._conn.transaction():
            yield


class AsyncPsycopg(Psycopg):
    """A `psycopg.AsyncConnection`."""

    blocking = False

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it, as the other."""
        async with self._cursor() as cursor:
            await cursor.execute(with_names(sql), values)
            found: Rows = await cursor.fetchall() if cursor.description else []
            return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block of psycopg's."""
        async with self._conn.transaction():
            yield


class Asyncpg(Session):
    """A connection of asyncpg, or the proxy that its pool lends."""

    product = "postgresql"
    blocking = False

    def __init__(self, conn: Any) -> None:
        self._conn = conn

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it; the types of the values are those that the server finds for their places."""
        text, names = with_numbers(sql)
        return [tuple(row) for row in await self._conn.fetch(text, *(values[name] for name in names))]

    def begun(self) -> bool:
        """As the connection says."""
        return bool(self._conn.is_in_transaction())

    async def lasts(self) -> bool:
        """Only in a transaction: asyncpg begins none by itself."""
        return self.begun()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block of asyncpg's."""
        async with self._conn.transaction():
            yield
