"""Connections as programs have them: each kind of driver and framework, with its own way to begin and commit.

A test is one ``async def`` for all of them: on a blocking connection none of its awaits suspends.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.db.utils import ConnectionHandler
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from dibs.runtime import run
from servers.postgres import PostgresServer

T = TypeVar("T")


class Caller:
    """One connection. `conn` is what dibs gets; `do` is what the program does with it beside."""

    blocking = True

    def __init__(self, conn: Any) -> None:
        self.conn = conn

    async def do(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement."""
        cursor = await done(self.conn.execute(sql))
        return [tuple(row) for row in await done(cursor.fetchall())] if cursor.description else []

    async def begin(self, isolation: str = "") -> None:
        """Begin a transaction."""
        await self.do(f"BEGIN {isolation and f'ISOLATION LEVEL {isolation}'}")

    async def commit(self) -> None:
        """Commit it."""
        await done(self.conn.commit())

    async def rollback(self) -> None:
        """Roll it back."""
        await done(self.conn.rollback())

    async def close(self) -> None:
        """End it."""
        await done(self.conn.close())


class OnSqlalchemy(Caller):
    """Begins by itself; *engine* is disposed of with it."""

    def __init__(self, conn: Any, engine: Any) -> None:
        super().__init__(conn)
        self._engine = engine

    async def do(self, sql: str) -> list[tuple[Any, ...]]:
        found = await done(self.conn.execute(text(sql)))
        return [tuple(row) for row in found] if found.returns_rows else []

    async def begin(self, isolation: str = "") -> None:
        if isolation:
            await self.do(f"SET TRANSACTION ISOLATION LEVEL {isolation}")

    async def close(self) -> None:
        await super().close()
        await done(self._engine.dispose())


class OnDjango(Caller):
    """A connection of Django's, outside of its settings."""

    async def do(self, sql: str) -> list[tuple[Any, ...]]:
        with self.conn.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    async def begin(self, isolation: str = "") -> None:
        self.conn.set_autocommit(False)
        if isolation:
            await self.do(f"SET TRANSACTION ISOLATION LEVEL {isolation}")

    async def commit(self) -> None:
        self.conn.commit()
        self.conn.set_autocommit(True)

    async def rollback(self) -> None:
        self.conn.rollback()
        self.conn.set_autocommit(True)


async def done(answer: Any) -> Any:
    """What was returned, or what comes of awaiting it."""
    return await answer if inspect.isawaitable(answer) else answer


Opener = Callable[[str], Coroutine[Any, Any, Caller]]


async def sqlite(path: str) -> Caller:
    return Caller(sqlite3.connect(path, isolation_level=None, timeout=10))


async def sqlalchemy_connection(url: str) -> Caller:
    engine = create_engine(url)
    return OnSqlalchemy(engine.connect(), engine)


async def sqlalchemy_session(url: str) -> Caller:
    engine = create_engine(url)
    return OnSqlalchemy(Session(engine), engine)


async def sqlite_sqlalchemy_connection(path: str) -> Caller:
    return await sqlalchemy_connection(f"sqlite:///{path}")


async def sqlite_sqlalchemy_session(path: str) -> Caller:
    return await sqlalchemy_session(f"sqlite:///{path}")


async def sqlite_django(path: str) -> Caller:
    return OnDjango(django_connection("django.db.backends.sqlite3", NAME=path))


def django_connection(engine: str, **settings: Any) -> Any:
    """A connection of Django's, known to it by an alias of its own."""
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True)
        django.setup()
    alias = f"alias{len(connections.settings)}"
    connections.settings |= ConnectionHandler().configure_settings(
        {"default": {}, alias: {"ENGINE": engine, "OPTIONS": {}, **settings}}
    )
    return connections[alias]


class OnPsycopg(Caller):
    """Of either colour; it is in no transaction before somebody begins one."""

    async def begin(self, isolation: str = "") -> None:
        await done(self.conn.execute(f"BEGIN {isolation and f'ISOLATION LEVEL {isolation}'}"))


class OnAsyncpg(Caller):
    """Its transactions are objects."""

    async def do(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.conn.fetch(sql)]

    async def begin(self, isolation: str = "") -> None:
        self._transaction = self.conn.transaction(isolation=isolation.lower().replace(" ", "_") or None)
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


async def psycopg_blocking(url: str) -> Caller:
    return OnPsycopg(psycopg.connect(url, autocommit=True))


async def psycopg_async(url: str) -> Caller:
    return OnPsycopg(await psycopg.AsyncConnection.connect(url, autocommit=True))


async def asyncpg_connection(url: str) -> Caller:
    return OnAsyncpg(await asyncpg.connect(url))


async def postgres_sqlalchemy_connection(url: str) -> Caller:
    return await sqlalchemy_connection(url.replace("postgresql:", "postgresql+psycopg:"))


async def postgres_sqlalchemy_session(url: str) -> Caller:
    return await sqlalchemy_session(url.replace("postgresql:", "postgresql+psycopg:"))


async def psycopg2_sqlalchemy_connection(url: str) -> Caller:
    return await sqlalchemy_connection(url.replace("postgresql:", "postgresql+psycopg2:"))


async def pg8000_sqlalchemy_connection(url: str) -> Caller:
    return await sqlalchemy_connection(url.replace("postgresql:", "postgresql+pg8000:"))


async def sqlalchemy_async_connection(url: str) -> Caller:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    return OnSqlalchemy(await engine.connect(), engine)


async def sqlalchemy_async_session(url: str) -> Caller:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    return OnSqlalchemy(AsyncSession(engine), engine)


async def postgres_django(url: str) -> Caller:
    parts = urlsplit(url)
    settings = {"HOST": parts.hostname, "PORT": parts.port, "USER": parts.username, "NAME": parts.path[1:]}
    return OnDjango(django_connection("django.db.backends.postgresql", **settings))


POSTGRES: dict[str, tuple[Opener, bool]] = {
    "psycopg": (psycopg_blocking, True),
    "psycopg async": (psycopg_async, False),
    "asyncpg": (asyncpg_connection, False),
    "sqlalchemy connection, postgres": (postgres_sqlalchemy_connection, True),
    "sqlalchemy session, postgres": (postgres_sqlalchemy_session, True),
    "sqlalchemy connection, psycopg2": (psycopg2_sqlalchemy_connection, True),
    "sqlalchemy connection, pg8000": (pg8000_sqlalchemy_connection, True),
    "sqlalchemy async connection, asyncpg": (sqlalchemy_async_connection, False),
    "sqlalchemy async session, psycopg": (sqlalchemy_async_session, False),
    "django, postgres": (postgres_django, True),
}
"""The way to connect, and whether it is for blocking code."""

SQLITE: dict[str, Opener] = {
    "sqlite3": sqlite,
    "sqlalchemy connection, sqlite": sqlite_sqlalchemy_connection,
    "sqlalchemy session, sqlite": sqlite_sqlalchemy_session,
    "django, sqlite": sqlite_django,
}


SOME = ("sqlite3", "django, sqlite", "psycopg", "asyncpg", "sqlalchemy async session, psycopg")
"""For what the way to connect makes little difference to."""


class Database:
    """One database, and one way to connect to it."""

    def __init__(self, opener: Opener, url: str, *, postgres: bool, blocking: bool) -> None:
        self._opener, self._url = opener, url
        self.postgres, self.blocking = postgres, blocking

    @asynccontextmanager
    async def caller(self) -> AsyncIterator[Caller]:
        """A connection, closed at the end."""
        caller = await self._opener(self._url)
        try:
            yield caller
        finally:
            await caller.close()

    async def do(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement, and commit it."""
        async with self.caller() as caller:
            await caller.begin()
            found = await caller.do(sql)
            await caller.commit()
            return found

    def run(self, test: Coroutine[Any, Any, T]) -> T:
        """Run the body of a test in the colour of the connections."""
        return run(test) if self.blocking else asyncio.run(test)


class CallerTests:
    """Its coroutines are tests, which get a *database* in every form there is."""

    kinds: ClassVar[tuple[str, ...]] = (*SQLITE, *POSTGRES)

    @pytest.fixture
    def database(self, request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Database:
        if kind in SQLITE:
            return Database(SQLITE[kind], str(tmp_path / "data.db"), postgres=False, blocking=True)
        server: PostgresServer = request.getfixturevalue("postgres")
        opener, blocking = POSTGRES[kind]
        return Database(opener, server.url, postgres=True, blocking=blocking)

    def __init_subclass__(cls) -> None:
        for name, test in list(vars(cls).items()):
            if name.startswith("test_"):
                setattr(cls, name, pytest.mark.parametrize("kind", cls.kinds)(_in_its_colour(test)))


def _in_its_colour(test: Any) -> Any:
    @functools.wraps(test)
    def run_it(self: object, database: Database, **fixtures: Any) -> None:
        database.run(test(self, database, **fixtures))

    return run_it
