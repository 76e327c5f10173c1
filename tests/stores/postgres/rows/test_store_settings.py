"""What a role, a database or a server may set otherwise does not matter: what we rely on is set on connect."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest

import dibs
from dibs.errors import StoreUnavailable
from dibs.runtime import run
from dibs.stores import Busy, Grant
from dibs.stores.postgres.advisory.store import PostgresAdvisoryStore
from dibs.stores.postgres.port.statement import Call, Statement
from dibs.stores.postgres.rows.store import PostgresStore
from dibs.stores.postgres.tables import TABLES
from servers.pgbouncer import PgBouncer
from servers.postgres import PostgresServer
from stores.rows import RUNTIME, steps

HOSTILE = {
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "5s",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "700ms",
    "client_encoding": "latin1",
    "standard_conforming_strings": "off",
    "extra_float_digits": "-15",
    '"DateStyle"': "SQL, DMY",
    '"IntervalStyle"': "sql_standard",
    '"TimeZone"': "Asia/Kathmandu",
    "bytea_output": "escape",
    "client_min_messages": "debug5",
    "plan_cache_mode": "force_generic_plan",
    "synchronous_commit": "off",
    "exit_on_error": "on",
    "force_parallel_mode": "regress",
    "enable_indexscan": "off",
    "enable_nestloop": "off",
    "enable_sort": "off",
    "row_security": "off",
    "session_replication_role": "replica",
    "array_nulls": "off",
    "jit_above_cost": "0",
}
"""Settings that a user may change, each to what could hurt."""

DATABASE = "hostile"

TABLES_THERE = re.findall(r"TABLE IF NOT EXISTS (\w+)", " ".join(TABLES))


@pytest.fixture(scope="module")
def made(shared_postgres: PostgresServer) -> Iterator[None]:
    """The database whose settings are changed."""
    shared_postgres.reset().do(f"CREATE DATABASE {DATABASE}")
    yield
    shared_postgres.reset().do(f"DROP DATABASE {DATABASE}")


@pytest.fixture
def database(postgres: PostgresServer, made: None) -> Iterator[PostgresServer]:
    """As the server sets it; a test changes that."""
    yield postgres
    postgres.do(f"ALTER DATABASE {DATABASE} RESET ALL")


def change(server: PostgresServer, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        listed = name == "search_path"  # a list is written without quotes around it
        server.do(f"ALTER DATABASE {DATABASE} SET {name} = {value if listed else repr(value)}")


def contend(url: str) -> None:
    """Clients that take one lock from each other, and share another: nobody is told of an error."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with dibs.connect(url) as client:
                for _ in range(3):
                    with client.lock("hot", ttl=20, timeout=50) as lease:
                        lease.renew()
                    with client.lock("read", ttl=20, timeout=50, shared=True):
                        pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    with dibs.connect(url) as client, client.lock("é", ttl=20, note="für alle"):
        [holder] = client.holders("é")
        assert (holder.name, holder.note) == ("é", "für alle")
        assert abs(holder.since - time.time()) < 600


@pytest.mark.parametrize("name", HOSTILE)
def test_rows_work_under_each_setting(database: PostgresServer, name: str) -> None:
    change(database, {name: HOSTILE[name]})
    contend(database.url_of(DATABASE))


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory"])
def test_locks_work_under_all_of_them(database: PostgresServer, scheme: str) -> None:
    change(database, HOSTILE)
    contend(database.url_of(DATABASE, scheme=scheme))


def test_rows_work_under_all_of_them_through_a_pooler(database: PostgresServer) -> None:
    change(database, HOSTILE)
    with PgBouncer(database, "transaction") as pooler:
        contend(pooler.url.replace("/postgres", f"/{DATABASE}"))


def test_session_locks_work_under_an_isolation_above_read_committed(database: PostgresServer) -> None:
    change(database, {"default_transaction_isolation": "repeatable read"})
    contend(database.url_of(DATABASE, scheme="postgresql+advisory"))


def test_statements_may_take_as_long_as_they_wait_for_a_row(database: PostgresServer) -> None:
    change(database, HOSTILE)
    look = [Call(Statement("look_at_settings", "SHOW statement_timeout"))]
    with (
        steps(database.url_of(DATABASE)) as rows,
        steps(database.url_of(DATABASE, scheme="postgresql+advisory")) as locks,
    ):
        assert isinstance(rows.store, PostgresStore)
        assert isinstance(locks.store, PostgresAdvisoryStore)
        assert run(rows.store._port.do(RUNTIME.now() + 30, look)) == [[("0",)]]
        assert run(locks.store._any_session.ask(RUNTIME.now() + 30, look)) == [[("0",)]]


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory"])
def test_a_waiter_is_called_after_longer_than_idle_sessions_have(database: PostgresServer, scheme: str) -> None:
    change(database, {"idle_session_timeout": "150ms"})
    with (
        steps(database.url_of(DATABASE, scheme=scheme)) as ours,
        steps(database.url_of(DATABASE, scheme=scheme)) as theirs,
    ):
        claim = ours.take(f"waited for by {scheme}")
        ask = theirs.ask(claim.name, queue=True)
        busy = theirs.grant(ask)
        assert isinstance(busy, Busy)
        time.sleep(0.4)  # sessions that are idle have ended by then
        assert ours.release(claim) is None
        theirs.wait(ask, busy, 30.0)
        assert isinstance(theirs.grant(ask), Grant)
        assert theirs.release(ask) is None


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory"])
def test_a_search_path_without_a_schema_is_named_as_what_is_wrong(database: PostgresServer, scheme: str) -> None:
    change(database, {"search_path": "nowhere"})
    with steps(database.url_of(DATABASE, scheme=scheme)) as client:
        with pytest.raises(
            StoreUnavailable, match=r"search_path .*nowhere.* names no schema .*csearch_path"
        ) as refused:
            client.take()
        assert "GRANT CREATE" not in str(refused.value)
    with steps(database.url_of(DATABASE, scheme=scheme) + "?options=-csearch_path%3Dpublic") as client:
        client.take("found")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory"])
def test_a_database_that_is_read_only_by_default_stays_so_and_is_named(database: PostgresServer, scheme: str) -> None:
    """It is how an administrator stops all writers, and how libpq tells which of several hosts may write."""
    change(database, {"default_transaction_read_only": "on"})
    may_only_read = pytest.raises(StoreUnavailable, match=r"may only read.*default_transaction_read_only")
    with steps(database.url_of(DATABASE, scheme=scheme)) as client, may_only_read:
        client.take()


def test_the_tables_are_made_by_the_method_that_has_upserts(database: PostgresServer) -> None:
    with database.connect(dbname=DATABASE) as other:
        for table in TABLES_THERE:
            other.execute(f"DROP TABLE IF EXISTS {table}".encode())
        other.execute("CREATE ACCESS METHOD columns TYPE TABLE HANDLER heap_tableam_handler")
        change(database, {"default_table_access_method": "columns"})
        with steps(database.url_of(DATABASE)) as client:
            client.take()
        other.execute("DROP ACCESS METHOD columns")  # refused if a table were of it
