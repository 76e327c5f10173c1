"""The lock in the caller's transaction: taken in any driver, refused where it would not protect, gone with the end."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine

from dibs.errors import Misuse, NotAcquired, NotSupported, StaleFence, StoreUnavailable
from dibs.guards import TableGuard
from dibs.postgres import hashtext, holds, xact_lock
from dibs.stores.postgres.advisory.key import advisory_key
from dibs.testing.proxy import FaultProxy
from guards.callers import POSTGRES, CallerTests, Database, done
from servers.pgbouncer import PgBouncer
from servers.postgres import PostgresServer

NAME = "account:42"


class TestXactLock(CallerTests):
    kinds = tuple(POSTGRES)

    async def test_it_excludes_others_until_the_transaction_ends(self, database: Database) -> None:
        async with database.caller() as one, database.caller() as two:
            await one.begin()
            first = await done(xact_lock(one.conn, NAME))
            await two.begin()
            for timeout in (0, 0.02):
                with pytest.raises(NotAcquired) as refused:
                    await done(xact_lock(two.conn, NAME, timeout=timeout))
                assert timeout <= refused.value.waited < timeout + 1
                assert refused.value.holder is not None
                assert "of the database" in refused.value.holder.note
            assert await done(xact_lock(two.conn, "another", timeout=0)) > 0  # the transaction goes on
            assert await done(holds(one.conn, NAME))
            assert not await done(holds(two.conn, NAME))
            await one.commit()
            assert await done(xact_lock(two.conn, NAME, timeout=5)) > first
            await two.rollback()

    async def test_it_is_refused_outside_of_a_transaction(self, database: Database) -> None:
        """It would end with the statement."""
        async with database.caller() as caller:
            if "sqlalchemy" in type(caller.conn).__module__:  # it begins one by itself
                assert await done(xact_lock(caller.conn, NAME))
                assert await done(holds(caller.conn, NAME))
                return
            with pytest.raises(Misuse, match="this connection is in none"):
                await done(xact_lock(caller.conn, NAME))

    @pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
    async def test_it_is_refused_where_the_snapshot_is_older_than_the_lock(
        self, database: Database, isolation: str
    ) -> None:
        """Case 70."""
        async with database.caller() as caller:
            await caller.begin(isolation)
            with pytest.raises(Misuse, match=f"{isolation}.*take it under READ COMMITTED"):
                await done(xact_lock(caller.conn, NAME))
            await caller.rollback()

    async def test_the_lock_timeout_of_the_transaction_is_as_it_was(self, database: Database) -> None:
        async with database.caller() as one, database.caller() as two:
            await one.begin()
            await done(xact_lock(one.conn, NAME))
            await two.begin()
            await two.do("SET LOCAL lock_timeout = '1234ms'")
            await done(xact_lock(two.conn, "a", timeout=5))
            await done(xact_lock(two.conn, "b"))
            with pytest.raises(NotAcquired):
                await done(xact_lock(two.conn, NAME, timeout=0.01))
            assert await two.do("SHOW lock_timeout") == [("1234ms",)]
            await two.rollback()
            await one.rollback()


@contextmanager
def transaction(server: PostgresServer, isolation: str = "") -> Iterator[psycopg.Connection[Any]]:
    """A connection of the test's own, in a transaction that is rolled back."""
    with psycopg.connect(server.url) as conn:
        if isolation:
            conn.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        yield conn
        if not conn.closed:
            conn.rollback()


def busy(conn: psycopg.Connection[Any], *args: Any, **options: Any) -> bool:
    """Whether the lock is taken."""
    try:
        xact_lock(conn, *args, timeout=0, **options)
    except NotAcquired:
        return True
    return False


def test_the_next_holder_sees_what_was_committed(postgres: PostgresServer) -> None:
    """Case 71: the lock cannot be given back before the commit. Eight threads add, and no addition is lost."""
    postgres.do("CREATE TABLE number (value integer)")
    postgres.do("INSERT INTO number VALUES (0)")

    def add() -> None:
        with psycopg.connect(postgres.url) as conn:
            for _ in range(5):
                with conn.transaction():
                    xact_lock(conn, "number")
                    found = conn.execute("SELECT value FROM number").fetchone()
                    assert found is not None
                    conn.execute("UPDATE number SET value = %s", [found[0] + 1])

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert postgres.do("SELECT value FROM number") == [(40,)]


def test_fences_rise_over_commits_rollbacks_and_lost_rows(postgres: PostgresServer) -> None:
    fences = []
    for end in ("commit", "rollback", "commit"):
        with transaction(postgres) as conn:
            fences.append(xact_lock(conn, NAME))
            getattr(conn, end)()
    postgres.do("DELETE FROM dibs_advisory")
    with transaction(postgres) as conn:
        fences.append(xact_lock(conn, NAME))
    assert fences == sorted(set(fences))
    assert fences[0] > 10**15


def test_a_fence_is_above_that_of_a_clock_that_was_ahead(postgres: PostgresServer) -> None:
    with transaction(postgres) as conn:
        xact_lock(conn, NAME)
        conn.execute("UPDATE dibs_advisory SET fence = fence + 10^12::bigint")
        conn.commit()
        [(ahead,)] = conn.execute("SELECT fence FROM dibs_advisory").fetchall()
        assert xact_lock(conn, NAME) == ahead + 1


def test_a_transaction_that_takes_it_twice_has_it_once(postgres: PostgresServer) -> None:
    """And keeps its fence: else its own second step would make its first one stale."""
    with transaction(postgres) as conn:
        fence = xact_lock(conn, NAME)
        assert xact_lock(conn, NAME) == fence
        conn.commit()
        assert xact_lock(conn, NAME) > fence


def test_after_a_rollback_to_a_savepoint_it_is_not_held(postgres: PostgresServer) -> None:
    """Case 72."""
    with transaction(postgres) as conn, transaction(postgres) as other:
        conn.execute("SAVEPOINT before")
        first = xact_lock(conn, NAME)
        assert holds(conn, NAME)
        conn.execute("ROLLBACK TO SAVEPOINT before")
        assert not holds(conn, NAME)
        assert xact_lock(other, NAME, timeout=0) > first


def test_shared_locks_exclude_only_exclusive_ones(postgres: PostgresServer) -> None:
    with transaction(postgres) as one, transaction(postgres) as two, transaction(postgres) as three:
        assert xact_lock(one, NAME, shared=True) == 1
        assert xact_lock(two, NAME, shared=True, timeout=0) == 1
        assert busy(three, NAME)
        one.commit()
        two.commit()
        fence = xact_lock(three, NAME)
        assert busy(one, NAME, shared=True)
        three.commit()
        assert xact_lock(one, NAME, shared=True) == fence


def test_a_table_that_was_made_since_the_transaction_last_looked_is_seen(postgres: PostgresServer) -> None:
    """Within a transaction PostgreSQL may go on believing that a table is not there that another has made."""
    postgres.do("DROP TABLE IF EXISTS dibs_advisory")
    with transaction(postgres) as one, transaction(postgres) as two:
        fence = xact_lock(two, NAME)
        assert busy(one, NAME, shared=True)
        two.commit()
        assert xact_lock(one, NAME, shared=True) == fence


def test_a_reader_with_a_shared_lock_can_be_checked(postgres: PostgresServer) -> None:
    guard = TableGuard(create_rows=True)
    with transaction(postgres) as reader, transaction(postgres) as writer:
        guard.create(reader)
        reader.commit()
        seen = xact_lock(reader, NAME, shared=True)
        reader.commit()  # and goes on with what it has read
        guard.claim(writer, NAME, xact_lock(writer, NAME))
        writer.commit()
        with pytest.raises(StaleFence):
            guard.check(reader, NAME, seen)


def test_the_keys_are_those_that_they_always_were(postgres: PostgresServer) -> None:
    """H62, H63: golden values. Another key would let two versions of dibs hold one lock, in a rolling upgrade."""
    golden = {
        ("default", "invoice:42"): 1992404930157630579,
        ("shop", "invoice:42"): -4314423507191255723,
        ("default", "ü\0"): -4671582800389185637,
    }
    for (namespace, name), key in golden.items():
        assert advisory_key(namespace, name) == key
        with transaction(postgres) as conn, transaction(postgres) as other:
            xact_lock(conn, name, namespace=namespace)
            assert other.execute("SELECT pg_try_advisory_xact_lock(%s)", [key]).fetchone() == (False,)
            assert busy(other, key)


def test_namespaces_are_apart(postgres: PostgresServer) -> None:
    with transaction(postgres) as conn, transaction(postgres) as other:
        xact_lock(conn, NAME, namespace="shop")
        assert not busy(other, NAME)
        assert busy(other, NAME, namespace="shop")


def test_locks_of_other_sql_are_shared_by_key_and_by_hashtext(postgres: PostgresServer) -> None:
    with transaction(postgres) as theirs, transaction(postgres) as ours:
        theirs.execute("SELECT pg_advisory_xact_lock(42), pg_advisory_xact_lock(hashtext('nightly'))")
        assert busy(ours, 42)
        assert busy(ours, key=42)
        assert busy(ours, key=hashtext("nightly"))
        theirs.commit()
        fence = xact_lock(ours, key=hashtext("nightly"))
        assert holds(ours, key=hashtext("nightly"))
        ours.commit()
        [(key,)] = theirs.execute("SELECT hashtext('nightly')::bigint").fetchall()
        assert xact_lock(theirs, key) > fence


def test_two_names_with_one_key_do_not_pass_for_each_other(postgres: PostgresServer) -> None:
    """H62: of 2^64 keys that is as good as impossible, so the test writes the row of the other itself."""
    with transaction(postgres) as conn:
        xact_lock(conn, "other")
        conn.commit()
        conn.execute("UPDATE dibs_advisory SET key = %s", [advisory_key("default", NAME)])
        conn.commit()
        with pytest.raises(Misuse, match="of another name with the same key"):
            xact_lock(conn, NAME)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([], {}),
        ([NAME], {"key": 42}),
        ([""], {}),
        ([True], {}),
        ([1.5], {}),
        ([2**63], {}),
        ([None], {"key": "42"}),
        ([NAME], {"timeout": -1}),
        ([NAME], {"timeout": True}),
        ([NAME], {"namespace": ""}),
        ([NAME], {"note": "x" * 2000}),
    ],
)
def test_what_cannot_be_right_is_refused(postgres: PostgresServer, args: list[Any], options: dict[str, Any]) -> None:
    with transaction(postgres) as conn:
        with pytest.raises(Misuse):
            xact_lock(conn, *args, **options)
        assert conn.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_an_error_of_the_body_frees_it_and_comes_out(postgres: PostgresServer) -> None:
    """H61."""
    with transaction(postgres) as conn, transaction(postgres) as other:
        with pytest.raises(psycopg.errors.DivisionByZero), conn.transaction():
            xact_lock(conn, NAME)
            conn.execute("SELECT 1 / 0")
        assert xact_lock(other, NAME, timeout=0)


def test_the_end_of_the_session_frees_it(postgres: PostgresServer) -> None:
    """Case 67: what was written is undone with it, so nothing of the dead holder lands later."""
    with transaction(postgres) as conn, transaction(postgres) as other:
        xact_lock(conn, NAME)
        assert postgres.terminate("SELECT %s::int AS pid", [conn.info.backend_pid])
        assert xact_lock(other, NAME, timeout=5)
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")


def behind(proxy: FaultProxy) -> tuple[FaultProxy, psycopg.Connection[Any]]:
    """A connection through *proxy*, and a table to write to."""
    far = psycopg.connect(f"postgresql://tests@127.0.0.1:{proxy.port}/postgres")
    far.execute("CREATE TABLE ledger (entry text)")
    far.commit()
    return proxy, far


def test_a_cut_network_undoes_the_lock_and_what_was_written_in_one_step(
    postgres: PostgresServer, fault_proxy: Callable[[PostgresServer], FaultProxy]
) -> None:
    proxy, far = behind(fault_proxy(postgres))
    with transaction(postgres) as other:
        lost = xact_lock(far, NAME)
        far.execute("INSERT INTO ledger VALUES ('of the one that was cut off')")
        proxy.cut()
        assert xact_lock(other, NAME, timeout=5) >= lost  # its fence was undone too
        assert other.execute("SELECT * FROM ledger").fetchall() == []
        with pytest.raises(psycopg.OperationalError):
            far.commit()


def test_a_commit_whose_answer_is_lost_ended_the_lock_and_is_seen_by_the_next(
    postgres: PostgresServer, fault_proxy: Callable[[PostgresServer], FaultProxy]
) -> None:
    proxy, far = behind(fault_proxy(postgres))
    with transaction(postgres) as other:
        first = xact_lock(far, NAME)
        far.execute("INSERT INTO ledger VALUES ('unknown to its writer')")
        with proxy.drop_reply(b"COMMIT", end="rst"), pytest.raises(psycopg.OperationalError):
            far.commit()
        assert xact_lock(other, NAME, timeout=5) > first
        assert other.execute("SELECT count(*) FROM ledger").fetchone() == (1,)


def test_fences_rise_over_a_failover_that_lost_the_last_commits(start_postgres: Callable[..., PostgresServer]) -> None:
    primary = start_postgres()
    with transaction(primary) as conn:
        xact_lock(conn, NAME)
        conn.commit()
        with primary.copy() as standby:
            standby.wait_until("SELECT count(*) = 1 FROM dibs_advisory")
            with transaction(standby) as early, pytest.raises(StoreUnavailable, match="is a standby"):
                xact_lock(early, NAME)
            standby.cut_off()
            lost = xact_lock(conn, NAME)
            conn.commit()
            primary.stop()
            standby.promote()
            assert standby.do("SELECT fence < %s FROM dibs_advisory", [lost]) == [(True,)], "the commit did not arrive"
            with transaction(standby) as after:
                assert xact_lock(after, NAME) > lost


def test_a_cancelled_wait_leaves_nothing(postgres: PostgresServer) -> None:
    """Case 68."""
    with transaction(postgres) as conn, transaction(postgres) as waiting, transaction(postgres) as other:
        xact_lock(conn, NAME)

        def cancel() -> None:
            is_waiting(postgres)
            waiting.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            xact_lock(waiting, NAME, timeout=20)
        thread.join()
        assert waiting.execute("SELECT 1").fetchone() == (1,)  # it was undone to before the wait
        conn.rollback()
        assert xact_lock(other, NAME, timeout=0)


def is_waiting(server: PostgresServer) -> None:
    server.wait_until("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'")


def test_a_waiter_gets_it_when_the_holder_commits(postgres: PostgresServer) -> None:
    fences: list[int] = []

    def wait() -> None:
        with transaction(postgres) as conn:
            fences.append(xact_lock(conn, NAME, timeout=20))

    with transaction(postgres) as conn:
        fences.append(xact_lock(conn, NAME))
        thread = threading.Thread(target=wait)
        thread.start()
        is_waiting(postgres)
        conn.commit()
        thread.join()
    assert fences == sorted(set(fences))


def test_it_works_through_a_pooler_in_transaction_mode(postgres: PostgresServer) -> None:
    """Case 66: the pooler keeps a transaction on one session."""
    with PgBouncer(postgres, size=2) as pooler:
        one, two = (psycopg.connect(pooler.url, prepare_threshold=None) for _ in range(2))
        with one, two:
            xact_lock(one, NAME)
            assert busy(two, NAME)
            one.commit()
            two.rollback()
            assert not busy(two, NAME)
    assert postgres.do("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted") == [(0,)]


def test_the_tables_are_made_at_the_first_use(postgres: PostgresServer) -> None:
    drop_tables(postgres)
    with transaction(postgres) as conn, transaction(postgres) as reader:
        assert xact_lock(reader, NAME, shared=True) == 1  # a reader makes none
        reader.commit()
        assert xact_lock(conn, NAME)
        conn.commit()
    assert postgres.do("SELECT count(*) FROM dibs_advisory") == [(1,)]


def test_nobody_waits_for_a_transaction_that_makes_the_tables(postgres: PostgresServer) -> None:
    """It may be one of the same thread, and would never end."""
    drop_tables(postgres)
    with transaction(postgres) as one, transaction(postgres) as two:
        fences = [xact_lock(one, NAME), xact_lock(two, "another")]
        two.commit()
        one.commit()
        fences += [xact_lock(two, "another"), xact_lock(one, NAME)]
    assert fences == sorted(set(fences))


def test_who_may_not_make_the_tables_is_told_who_may(postgres: PostgresServer) -> None:
    drop_tables(postgres)
    postgres.do("DROP ROLE IF EXISTS humble")
    postgres.do("CREATE ROLE humble LOGIN")
    with psycopg.connect(postgres.url_of(user="humble")) as conn:
        with pytest.raises(StoreUnavailable, match="dibs init --sql"):
            xact_lock(conn, NAME)
        assert conn.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(("shared", "rights"), [(False, "SELECT, INSERT, UPDATE"), (True, "SELECT")])
def test_who_may_not_use_the_table_is_told_which_right_to_ask_for(
    postgres: PostgresServer, rights: str, *, shared: bool
) -> None:
    with transaction(postgres) as conn:
        xact_lock(conn, "makes the tables")
        conn.commit()
    postgres.do("DROP ROLE IF EXISTS humble")
    postgres.do("CREATE ROLE humble LOGIN")
    with psycopg.connect(postgres.url_of(user="humble")) as conn:
        with pytest.raises(StoreUnavailable, match=f"roll back, .* GRANT {rights} ON dibs_advisory TO"):
            xact_lock(conn, NAME, shared=shared)
        conn.rollback()
        postgres.do(f"GRANT {rights} ON dibs_advisory TO humble")
        assert xact_lock(conn, NAME, shared=shared)
        conn.rollback()
        with pytest.raises(NotAcquired), transaction(postgres) as other:
            xact_lock(other, NAME)
            xact_lock(conn, NAME, timeout=0)
    postgres.do("DROP OWNED BY humble")


def drop_tables(server: PostgresServer) -> None:
    for table in ("dibs_lease", "dibs_waiter", "dibs_advisory", "dibs_advisory_waiter"):
        server.do(f"DROP TABLE IF EXISTS {table}")


def test_the_holder_of_a_session_lock_is_told_by_its_row(postgres: PostgresServer) -> None:
    with transaction(postgres) as session, transaction(postgres) as conn:
        xact_lock(conn, "makes the tables")
        conn.commit()
        key = advisory_key("default", NAME)
        session.execute("SELECT pg_advisory_lock(%s)", [key])
        session.execute(
            """INSERT INTO dibs_advisory (key, namespace, name, fence, token, backend, since, host, pid, login, note)
            VALUES (%s, 'default', %s, 7, 'abc', pg_backend_pid(), clock_timestamp(), 'host-a', 42, 'anna', 'nightly')
            """,
            [key, NAME],
        )
        session.commit()
        with pytest.raises(NotAcquired) as refused:
            xact_lock(conn, NAME, timeout=0)
        holder = refused.value.holder
        assert holder is not None
        assert holder[:7] == (NAME, 7, "host-a", 42, "anna", "nightly", holder.since)
        assert abs(holder.since - time.time()) < 60


def test_the_cursors_and_rows_of_the_caller_may_be_of_any_kind(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, row_factory=dict_row, cursor_factory=psycopg.RawCursor) as conn:
        assert xact_lock(conn, NAME, timeout=1) > 0
        assert holds(conn, NAME)


def test_sqlalchemy_with_autocommit_is_refused(postgres: PostgresServer) -> None:
    engine = create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn, pytest.raises(Misuse, match="in none"):
        xact_lock(conn, NAME)
    engine.dispose()


def test_other_databases_are_refused() -> None:
    with closing(sqlite3.connect(":memory:")) as conn, pytest.raises(NotSupported, match="lock of PostgreSQL"):
        xact_lock(conn, NAME)
