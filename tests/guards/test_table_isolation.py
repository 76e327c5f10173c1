"""A guard under each isolation level: who is stale is refused, at once or when its transaction is run again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from dibs.errors import Changed, StaleFence
from dibs.guards import ColumnGuard, TableGuard
from dibs.optimistic import Versioned, retry
from servers.postgres import PostgresServer

NAME = "account:42"
GUARD = TableGuard()
COLUMN = ColumnGuard("account", lambda name: {"id": int(name.removeprefix("account:"))})


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    with connected(postgres) as conn:
        GUARD.create(conn)
        GUARD.add(conn, NAME)
    postgres.do("CREATE TABLE account (id integer PRIMARY KEY, balance integer, fence bigint, version integer)")
    postgres.do("INSERT INTO account VALUES (42, 100, 0, 0)")
    return postgres


@contextmanager
def connected(server: PostgresServer, isolation: str = "READ COMMITTED") -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.url) as conn:
        conn.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        yield conn


def while_a_newer_one_commits(server: PostgresServer, guard: Any, stale: Any) -> None:
    """A newer holder has claimed and not committed yet; *stale* begins, waits for its row, and then it commits."""
    with connected(server) as newer:
        guard.claim(newer, NAME, 18)
        thread = threading.Thread(target=stale)
        thread.start()
        server.wait_until("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
        newer.commit()
        thread.join()


@pytest.mark.parametrize("guard", [GUARD, COLUMN], ids=["table", "column"])
def test_a_stale_writer_behind_a_new_one_looks_again_and_is_refused(server: PostgresServer, guard: Any) -> None:
    """Case 77."""
    found: list[BaseException] = []

    def stale() -> None:
        with connected(server) as conn:
            try:
                guard.claim(conn, NAME, 17)
            except StaleFence as error:
                found.append(error)
            conn.execute("SELECT 1")  # and nothing is poisoned

    while_a_newer_one_commits(server, guard, stale)
    assert [str(error) for error in found] == [str(StaleFence(NAME, 17, 18))]


@pytest.mark.parametrize("guard", [GUARD, COLUMN], ids=["table", "column"])
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_under_an_old_snapshot_it_is_told_to_run_again_and_is_refused_then(
    server: PostgresServer, guard: Any, isolation: str
) -> None:
    """Case 77. It cannot be told that it is stale: under its snapshot the current fence cannot be seen."""
    found: list[BaseException] = []
    runs: list[int] = []

    @retry()
    def claim() -> None:
        runs.append(1)
        with connected(server, isolation) as conn:
            try:
                guard.claim(conn, NAME, 17)
            except psycopg.errors.SerializationFailure as error:
                found.append(error)
                raise

    def stale() -> None:
        try:
            claim()
        except StaleFence as error:
            found.append(error)

    while_a_newer_one_commits(server, guard, stale)
    assert [type(error) for error in found] == [psycopg.errors.SerializationFailure, StaleFence]
    assert "run it again" in found[0].__notes__[0]
    assert len(runs) == 2


def test_a_new_holder_behind_an_old_one_is_accepted_when_it_runs_again(server: PostgresServer) -> None:
    """So the failure is no sign of being stale."""
    runs: list[int] = []

    @retry()
    def claim() -> None:
        runs.append(1)
        with connected(server, "REPEATABLE READ") as conn:
            GUARD.claim(conn, NAME, 19)

    while_a_newer_one_commits(server, GUARD, claim)
    assert len(runs) == 2
    assert server.do("SELECT fence FROM dibs_guard") == [(19,)]


def test_check_sees_through_an_old_snapshot(server: PostgresServer) -> None:
    """A plain SELECT would answer from before the claim."""
    with connected(server, "REPEATABLE READ") as reader, connected(server) as newer:
        assert reader.execute("SELECT fence FROM dibs_guard").fetchone() == (0,)
        GUARD.claim(newer, NAME, 18)
        newer.commit()
        assert reader.execute("SELECT fence FROM dibs_guard").fetchone() == (0,)
        with pytest.raises(psycopg.errors.SerializationFailure):
            GUARD.check(reader, NAME, 17)
        reader.rollback()
        with pytest.raises(StaleFence):
            GUARD.check(reader, NAME, 17)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_an_overtaken_version_is_a_change_in_the_end(server: PostgresServer, isolation: str) -> None:
    seen: list[int] = []

    @retry(attempts=2, wait=0.001)
    def write() -> None:
        with connected(server, isolation) as conn:
            seen.append(1)
            Versioned("account").update(conn, {"id": 42}, 0, {"balance": 90})

    def overtaken() -> None:
        with pytest.raises(Changed):
            write()

    with connected(server) as other:
        Versioned("account").update(other, {"id": 42}, 0, {"balance": 80})
        thread = threading.Thread(target=overtaken)
        thread.start()
        server.wait_until("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
        other.commit()
        thread.join()
    assert len(seen) == 2
    assert server.do("SELECT balance, version FROM account") == [(80, 1)]


def test_a_claim_that_waits_behind_a_stopped_holder_can_have_an_end(server: PostgresServer) -> None:
    """Who stands still in its own transaction holds the row; the caller's lock_timeout bounds the wait for it."""
    with connected(server) as slow, connected(server) as next_one:
        GUARD.claim(slow, NAME, 17)
        next_one.execute("SET LOCAL lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            GUARD.claim(next_one, NAME, 18)
        next_one.rollback()
        slow.rollback()
        GUARD.claim(next_one, NAME, 18)
