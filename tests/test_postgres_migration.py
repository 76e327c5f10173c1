"""One process at a time migrates; the others wait, are told who does, and find nothing to do."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool, StaticPool

from dibs.errors import LeaseLost, Misuse, NotAcquired, NotSupported
from dibs.postgres import migration_lock
from servers.pgbouncer import PgBouncer
from servers.postgres import PostgresServer

HERE = Path(__file__).parent


def alembic(url: str, together: Path) -> subprocess.Popen[str]:
    """``alembic upgrade head`` in a process of its own."""
    program = (
        "from alembic import command, config; import logging; logging.basicConfig(level=logging.INFO);"
        f"c = config.Config(); c.set_main_option('script_location', {str(HERE / 'migrations')!r});"
        "c.set_main_option('path_separator', 'os'); command.upgrade(c, 'head')"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DATABASE": url, "TOGETHER": str(together), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def dsn(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "through pgbouncer"])
def test_three_processes_migrate_a_fresh_database_at_once(
    postgres: PostgresServer, tmp_path: Path, pooled: bool
) -> None:
    """One migrates, also with a migration that commits in between; two wait, are told who, and find nothing to do."""
    if pooled:
        with PgBouncer(postgres, size=10) as pooler:
            said = migrate_thrice(dsn(pooler.url), tmp_path)
    else:
        said = migrate_thrice(dsn(postgres.url), tmp_path)
    assert sorted(postgres.do("SELECT revision FROM migrated")) == [("one",), ("two",)]
    assert postgres.do("SELECT version_num FROM alembic_version") == [("two",)]
    assert postgres.do("SELECT indisvalid FROM pg_index WHERE indexrelid = 'migrated_revision'::regclass") == [(True,)]
    migrated = [text for text in said if "Running upgrade" in text]
    waited = [text for text in said if "waiting for another to migrate" in text]
    assert (len(migrated), len(waited)) == (1, 2)
    assert all("dibs migration: " in text and " pid " in text for text in waited)
    assert not set(migrated) & set(waited)


def migrate_thrice(url: str, together: Path) -> list[str]:
    """What each of the three said."""
    processes = [alembic(url, together) for _ in range(3)]
    said = [process.communicate(timeout=40)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    return said


@pytest.fixture
def engine(postgres: PostgresServer) -> Iterator[Engine]:
    engine = create_engine(dsn(postgres.url), poolclass=NullPool)
    yield engine
    engine.dispose()


def test_the_wait_has_an_end_if_one_is_asked_for(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with engine.connect() as one, engine.connect() as two, migration_lock(one):
        with pytest.raises(NotAcquired) as refused, migration_lock(two, timeout=1):
            pytest.fail("two migrate at once")
        assert refused.value.waited >= 1
        assert refused.value.holder is not None
        with migration_lock(two, name="another", timeout=0):
            pass
    assert f"pid {os.getpid()}" in caplog.text


def test_whoever_waits_keeps_no_snapshot(engine: Engine, postgres: PostgresServer) -> None:
    """CREATE INDEX CONCURRENTLY would wait for it, and it for the migration."""
    entered = threading.Event()

    def wait() -> None:
        with engine.connect() as conn, migration_lock(conn):
            entered.set()

    with engine.connect() as conn, migration_lock(conn):
        thread = threading.Thread(target=wait)
        thread.start()
        postgres.do("CREATE TABLE big (value integer)")
        for _ in range(5):  # while the other waits, and asks every now and then
            postgres.do("CREATE INDEX CONCURRENTLY ON big (value)")
        assert not entered.is_set()
        holder = "pid = (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"
        assert postgres.do(f"SELECT backend_xid, backend_xmin FROM pg_stat_activity WHERE {holder}") == [(None, None)]
    thread.join()


def test_a_lock_that_was_lost_in_the_middle_is_told_at_the_end(engine: Engine, postgres: PostgresServer) -> None:
    with engine.connect() as conn, pytest.raises(LeaseLost, match="session ended"), migration_lock(conn):
        assert postgres.terminate("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")


def test_an_error_of_the_migration_comes_out_and_the_lock_is_free(engine: Engine) -> None:
    with engine.connect() as conn, pytest.raises(ZeroDivisionError), migration_lock(conn):
        raise ZeroDivisionError
    with engine.connect() as conn, migration_lock(conn, timeout=0):
        pass


def test_an_engine_with_one_connection_is_refused(postgres: PostgresServer) -> None:
    engine = create_engine(dsn(postgres.url), poolclass=StaticPool)
    with engine.connect() as conn, pytest.raises(Misuse, match="single connection"), migration_lock(conn):
        pass
    engine.dispose()


def test_other_databases_are_refused() -> None:
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(":memory:"))
    with engine.connect() as conn, pytest.raises(NotSupported), migration_lock(conn):
        pass
    engine.dispose()
