"""A guard on a connection claims in the transaction that is there, or in one of its own that is over at once."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import dibs
import dibs.aio
from dibs.errors import GuardMissing, StaleFence
from dibs.guards import TableGuard
from guards.callers import CallerTests, Database, done
from servers.postgres import PostgresServer

NAME = "account:42"


@pytest.fixture
def client() -> Iterator[dibs.Client]:
    with dibs.connect("memory:guards-on") as client:
        yield client


class TestOn(CallerTests):
    async def test_outside_of_a_transaction_the_claim_is_committed_at_once(self, database: Database) -> None:
        """So a holder that stands still in its block keeps nobody waiting."""
        guard = TableGuard(create_rows=True)
        async with database.caller() as caller, database.caller() as other:
            await caller.begin()
            await done(guard.create(caller.conn))
            await caller.commit()
            await done(guard.on(caller.conn).claim(NAME, 5))
            await other.begin()
            await done(guard.claim(other.conn, NAME, 6))
            await other.commit()
            with pytest.raises(StaleFence):
                await done(guard.on(caller.conn).claim(NAME, 5))
            await done(guard.on(caller.conn).seal(NAME, 6))

    async def test_in_a_transaction_the_claim_belongs_to_it(self, database: Database) -> None:
        guard = TableGuard(create_rows=True)
        async with database.caller() as caller:
            await caller.begin()
            await done(guard.create(caller.conn))
            await caller.commit()
            await caller.begin()
            await caller.do("INSERT INTO dibs_guard (name) VALUES ('begins it')")
            await done(guard.on(caller.conn).claim(NAME, 5))
            await caller.rollback()
        assert await database.do("SELECT * FROM dibs_guard") == []


@pytest.fixture
def conn(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(tmp_path / "data.db")
    TableGuard().create(conn)
    TableGuard().add(conn, NAME)
    conn.commit()
    yield conn
    conn.close()


def test_a_guard_for_async_code_is_refused_before_the_lock_is_taken(
    client: dibs.Client, postgres: PostgresServer
) -> None:
    class Awaited:
        async def claim(self, name: str, fence: int) -> None:
            raise AssertionError("it was asked")

        async def seal(self, name: str, fence: int) -> None:
            raise AssertionError("it was asked")

    async def connection() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(postgres.url)

    before = client.show(NAME).fence
    async_connection = asyncio.run(connection())
    for guard in (Awaited(), TableGuard().on(async_connection)):
        with pytest.raises(dibs.Misuse, match=r"of lock 'account:42' is for async code.*dibs\.aio"):
            client.lock(NAME).guarded(guard)
    async_connection.pgconn.finish()
    assert client.show(NAME).fence == before, "it was granted"
    async_connection.pgconn.finish()


def test_a_block_claims_first_and_seals_last(client: dibs.Client, conn: sqlite3.Connection) -> None:
    guard = TableGuard()
    with client.lock(NAME).guarded(guard.on(conn)) as lease:
        assert not conn.in_transaction
        with pytest.raises(StaleFence):
            guard.claim(conn, NAME, lease.fence - 1)
        guard.claim(conn, NAME, lease.fence)
        conn.commit()
    assert not conn.in_transaction
    with pytest.raises(StaleFence, match="same grant"):
        guard.claim(conn, NAME, lease.fence)


def test_rows_of_the_caller_may_be_of_any_kind(conn: sqlite3.Connection) -> None:
    conn.row_factory = sqlite3.Row
    TableGuard().claim(conn, NAME, 5)
    conn.row_factory = lambda cursor, row: {}
    with pytest.raises(StaleFence):
        TableGuard().check(conn, NAME, 4)


def test_a_block_that_fails_leaves_its_transaction_as_it_is(client: dibs.Client, conn: sqlite3.Connection) -> None:
    """The seal is a part of it, and undone with it."""
    guard = TableGuard()
    with pytest.raises(ZeroDivisionError), client.lock(NAME).guarded(guard.on(conn)) as lease:
        guard.claim(conn, NAME, lease.fence)
        raise ZeroDivisionError
    assert conn.in_transaction
    conn.rollback()
    guard.claim(conn, NAME, lease.fence)


def test_a_block_whose_guard_is_missing_is_not_entered(client: dibs.Client, conn: sqlite3.Connection) -> None:
    with pytest.raises(GuardMissing), client.lock("other").guarded(TableGuard().on(conn)):
        pytest.fail("the block was entered")
    assert client.show("other").holder is None


async def in_async_code(conn: sqlite3.Connection) -> None:
    async with dibs.aio.connect("memory:guards-on-async") as client:
        async with client.lock(NAME).guarded(TableGuard().on(conn)) as lease:
            with pytest.raises(StaleFence):
                TableGuard().claim(conn, NAME, lease.fence - 1)
        assert (await client.show(NAME)).holder is None


def test_an_async_lock_takes_an_async_connection(postgres: PostgresServer) -> None:
    async def main() -> None:
        guard = TableGuard(create_rows=True)
        async with (
            dibs.aio.connect("memory:guards-on-async") as client,
            await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as conn,
        ):
            await guard.create(conn)
            async with client.lock(NAME).guarded(guard.on(conn)) as lease:
                with pytest.raises(StaleFence):
                    await guard.claim(conn, NAME, lease.fence - 1)
            with pytest.raises(StaleFence, match="same grant"):
                await guard.claim(conn, NAME, lease.fence)

    asyncio.run(main())


def test_a_lock_whose_guard_has_to_be_awaited_without_saying_so_is_given_back(client: dibs.Client) -> None:
    class Suspends:
        def claim(self, name: str, fence: int) -> Awaitable[None]:
            return asyncio.sleep(0)

        seal = claim

    with pytest.raises(RuntimeError, match="suspended in blocking code"), client.lock(NAME).guarded(Suspends()):
        pytest.fail("the block was entered")
    deadline = time.monotonic() + 5
    while client.show(NAME).holder is not None:  # in the background: the coroutine cannot await any more
        assert time.monotonic() < deadline


def test_an_async_lock_takes_a_blocking_connection_too(conn: sqlite3.Connection) -> None:
    asyncio.run(in_async_code(conn))
