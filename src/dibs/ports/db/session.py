"""The caller's own database connection: one way to run a statement on it, whichever driver it is from.

A lock that lives in the caller's transaction, a guard and a versioned update have this in common: they add their
statements to what the caller does anyway. Nothing here opens, keeps or closes a connection, and no driver is imported
before somebody comes with a connection of it: a connection tells by its class whose it is.
"""

from __future__ import annotations

import functools
import importlib
import re
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeAlias, cast

from dibs.errors import Misuse, NotSupported
from dibs.ports.db.sync_or_async import Opened, method_on, step_on

Rows: TypeAlias = list[tuple[Any, ...]]


class Session(Opened, ABC):
    """A connection as we see it. Its awaits suspend only if the connection is one for async code."""

    product: Literal["postgresql", "sqlite"]

    @abstractmethod
    async def rows(self, sql: str, /, **values: object) -> Rows:
        """Run one statement, with a value for each ``:name`` in it; what it returns."""

    @abstractmethod
    def begun(self) -> bool:
        """Whether the connection is in the middle of a transaction."""

    @abstractmethod
    async def lasts(self) -> bool:
        """Whether a statement that writes now is in one transaction with those that the caller runs next."""

    @abstractmethod
    def transaction(self) -> AbstractAsyncContextManager[None]:
        """A transaction that is committed at the end; must not be asked for in the middle of another."""


_HERE = {
    "sqlite3.Connection": "drivers.Sqlite",
    "psycopg.Connection": "drivers.Psycopg",
    "psycopg.AsyncConnection": "drivers.AsyncPsycopg",
    "asyncpg.Connection": "drivers.Asyncpg",
    "asyncpg.PoolConnectionProxy": "drivers.Asyncpg",
    "sqlalchemy.Connection": "sqlalchemy.Sync",
    "sqlalchemy.Session": "sqlalchemy.Sync",
    "sqlalchemy.scoped_session": "sqlalchemy.scoped",
    "sqlalchemy.AsyncConnection": "sqlalchemy.Async",
    "sqlalchemy.AsyncSession": "sqlalchemy.Async",
    "sqlalchemy.async_scoped_session": "sqlalchemy.scoped",
    "django.BaseDatabaseWrapper": "django.Django",
    "django.ConnectionProxy": "django.Django",
}
"""Package and class of a connection, and what knows it."""


def session_of(conn: object) -> Session:
    """The connection *conn* as a session; `Misuse` if it is none that we know."""
    for each in type(conn).__mro__:
        place = _HERE.get(f"{each.__module__.partition('.')[0]}.{each.__name__}")
        if place is not None:
            module, _, name = place.partition(".")
            return cast("Session", getattr(importlib.import_module(f"dibs.ports.db.{module}"), name)(conn))
    raise Misuse(
        f"{type(conn).__module__}.{type(conn).__qualname__} is no connection that dibs knows: it takes one of sqlite3, "
        "psycopg (3), asyncpg, Django, or a Connection or Session of SQLAlchemy, and no pool and no engine"
    )


def product_of(name: str) -> Literal["postgresql", "sqlite"]:
    """The database by the name that SQLAlchemy and Django have for it."""
    if name not in ("postgresql", "sqlite"):
        raise NotSupported(f"dibs has no statements for {name}: they are for postgresql and sqlite")
    return cast("Literal['postgresql', 'sqlite']", name)


@functools.lru_cache(maxsize=256)
def with_names(sql: str) -> str:
    """The statement with ``%(name)s`` for ``:name``, as psycopg and Django have it."""
    return _VALUE.sub(r"%(\1)s", sql)


@functools.lru_cache(maxsize=256)
def with_numbers(sql: str) -> tuple[str, tuple[str, ...]]:
    """The statement with ``$1`` for a name, as asyncpg has it; and the names in that order."""
    names = tuple(dict.fromkeys(_VALUE.findall(sql)))
    return _VALUE.sub(lambda found: f"${names.index(found[1]) + 1}", sql), names


_VALUE = re.compile(r"(?<![:\w]):([a-z]\w*)")  # not the type in ``x::bigint``


on_connection = step_on(session_of)
method_on_connection = method_on(session_of)
