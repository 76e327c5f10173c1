"""Connections and sessions of SQLAlchemy 2, in both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dibs.ports.db.drivers import begins_by_itself
from dibs.ports.db.session import Rows, Session, product_of


class Sync(Session):
    """A ``Connection`` or ``Session``."""

    blocking = True

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        bound = conn.get_bind() if hasattr(conn, "get_bind") else conn
        self.product = product_of(bound.dialect.name)

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it as text."""
        return _fetched(self._conn.execute(_text(sql), values))

    def begun(self) -> bool:
        """As it says: it begins a transaction with the first statement."""
        return bool(self._conn.in_transaction())

    async def lasts(self) -> bool:
        """Always, but on a connection whose isolation level is AUTOCOMMIT."""
        conn = self._conn.connection() if hasattr(self._conn, "get_bind") else self._conn
        return _lasts(conn.connection.dbapi_connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block of SQLAlchemy's."""
        with self._conn.begin():
            yield


class Async(Sync):
    """An ``AsyncConnection`` or ``AsyncSession``."""

    blocking = False

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it as text."""
        return _fetched(await self._conn.execute(_text(sql), values))

    async def lasts(self) -> bool:
        """Always, but on a connection whose isolation level is AUTOCOMMIT."""
        conn = await self._conn.connection() if hasattr(self._conn, "get_bind") else self._conn
        return _lasts(conn.sync_connection.connection.dbapi_connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A block of SQLAlchemy's."""
        async with self._conn.begin():
            yield


def scoped(registry: Any) -> Session:
    """The session that a ``scoped_session`` or ``async_scoped_session`` has for us."""
    session = registry()
    return Async(session) if hasattr(session, "sync_session") else Sync(session)


def _text(sql: str) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - it has a connection, so it is there

    return text(sql)


def _fetched(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


def _lasts(dbapi: Any) -> bool:
    """Whether the driver's connection, or SQLAlchemy's async wrapper of it, keeps a transaction open."""
    if hasattr(dbapi, "isolation_level") and not isinstance(getattr(dbapi, "autocommit", -1), bool):
        return begins_by_itself(dbapi)  # in the shape of sqlite3's
    return not dbapi.autocommit
