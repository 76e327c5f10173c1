"""Django's database connection, as in ``from django.db import connection``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dibs.ports.db.session import Rows, Session, product_of, with_names


class Django(Session):
    """A connection of Django; blocking, as all of them."""

    blocking = True

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        self.product = product_of(conn.vendor)

    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run it on a cursor of Django's, which opens the connection if need be."""
        with self._conn.cursor() as cursor:
            cursor.execute(with_names(sql), values)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def begun(self) -> bool:
        """In an ``atomic`` block, or with autocommit off."""
        return bool(self._conn.in_atomic_block or not self._conn.get_autocommit())

    async def lasts(self) -> bool:
        """The same: Django begins none by itself."""
        return self.begun()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """An ``atomic`` block."""
        from django.db import transaction  # noqa: PLC0415 - it has a connection, so it is there

        with transaction.atomic(using=self._conn.alias):
            yield
