"""Records in the rows of PostgreSQL: what is sent, what a sweep deletes, and why the row of the name decides."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import IsolationLevel

from dibs.errors import LossReason, Misuse
from dibs.holder import Record
from dibs.ports.db.session import session_of
from dibs.runtime import run
from dibs.stores.postgres.rows.records import HOUR, SWEEP, finish_on
from dibs.stores.record_store import record_store
from dibs.stores.store import Busy, Claim, Grant
from servers.postgres import PostgresServer
from servers.process import until
from stores.postgres.rows.test_store import sent
from stores.rows import Steps, steps

KEEP = 60.0


def begun(client: Steps, name: str = "x", *, after: int = 0, ttl: float = 30.0) -> Claim:
    ask = client.ask(name, ttl=ttl)
    answer = run(record_store(client.store).grant_unless_recorded(ask, after, 5))
    assert isinstance(answer, Grant), answer
    return Claim(name, ask.token, answer.fence, answer.ttl)


def finished(client: Steps, name: str = "x", *, keep: float = KEEP) -> Claim:
    claim = begun(client, name)
    assert run(record_store(client.store).finish(claim, b"done", keep, 5)) is None
    return claim


def recalled(client: Steps, name: str = "x", *, ttl: float = 30.0, queue: bool = False) -> Grant | Busy | Record:
    return run(record_store(client.store).grant_unless_recorded(client.ask(name, ttl=ttl, queue=queue), 0, 5))


def test_one_request_begins_and_one_ends_and_one_replays(ours: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.stores.postgres.rows.records.SWEEP_ONE_IN", 10**9)
    names = sent(monkeypatch)
    finished(ours)
    assert isinstance(recalled(ours), Record)
    assert names == ["take_unless", "finish", "unwritten", "take_unless"]


def test_a_replay_writes_nothing(ours: Steps, postgres: PostgresServer) -> None:
    finished(ours)
    [before] = postgres.do("SELECT xmin::text, xmax::text, ctid::text FROM dibs_lease")
    assert isinstance(recalled(ours), Record)
    assert postgres.do("SELECT xmin::text, xmax::text, ctid::text FROM dibs_lease") == [before]


def test_a_plain_lock_is_as_it_was(ours: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(ours)
    names = sent(monkeypatch)
    ours.release(ours.take())
    assert names == ["take", "release"]
    assert isinstance(recalled(ours), Record), "and does not touch the record"


def test_who_waited_for_the_row_sees_the_record_that_was_written_meanwhile(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    """Its statement began before, and in another table it would see what was there then: nothing. So it would begin."""
    claim, found = begun(ours, ttl=1), list[object]()
    with postgres.connect() as conn, conn.transaction():
        session = session_of(conn)
        assert run(finish_on(session, "default", claim, b"done", KEEP)) is None
        waiting = threading.Thread(target=lambda: found.append(recalled(theirs)))
        waiting.start()
        postgres.wait_until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        assert found == []
    waiting.join(10)
    [record] = found
    assert isinstance(record, Record)
    assert record.data == b"done"


def test_a_sweep_deletes_what_is_over_and_nobody_has_used_since(ours: Steps, postgres: PostgresServer) -> None:
    """Not what is kept, held, waited for, or has a fence that the clock has only just passed."""
    for name in ("over", "held", "waited", "recent", "never"):
        if name == "never":
            ours.release(ours.take(name))
        else:
            finished(ours, name, keep=0.001)
    finished(ours, "kept")
    postgres.do("UPDATE dibs_lease SET fence = fence - %s WHERE name <> 'recent'", (HOUR + 1,))
    postgres.do("UPDATE dibs_lease SET token = 't', ends_at = now() + interval '1 hour' WHERE name = 'held'")
    postgres.do("UPDATE dibs_lease SET waiting = true WHERE name = 'waited'")
    postgres.do(SWEEP.sql.decode())
    left = {name for (name,) in postgres.do("SELECT name FROM dibs_lease")}
    assert left == {"held", "waited", "recent", "kept", "never"}
    assert begun(ours, "over").fence


def test_finishing_sweeps_now_and_then(ours: Steps, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(ours, "over", keep=0.001)
    postgres.do("UPDATE dibs_lease SET fence = fence - %s", (HOUR + 1,))
    monkeypatch.setattr("dibs.stores.postgres.rows.records.SWEEP_ONE_IN", 1)
    until(lambda: swept(ours, postgres), "the row is deleted")


def swept(client: Steps, postgres: PostgresServer) -> bool:
    finished(client, f"another {client.ask().token}")
    return postgres.do("SELECT 1 FROM dibs_lease WHERE name = 'over'") == []


def test_tables_of_before_get_the_columns(postgres: PostgresServer) -> None:
    with steps(postgres.url) as client:
        client.release(client.take())
    columns = "record, DROP COLUMN record_fence, DROP COLUMN record_token, DROP COLUMN record_at"
    postgres.do(f"ALTER TABLE dibs_lease DROP COLUMN {columns}, DROP COLUMN record_ends_at")
    with steps(postgres.url) as client:
        finished(client)
        assert isinstance(recalled(client), Record)


def test_a_connection_to_a_database_without_the_tables_is_told_so(ours: Steps, postgres: PostgresServer) -> None:
    claim = begun(ours)
    with postgres.connect() as conn:
        conn.execute("SET search_path = pg_catalog")
        with pytest.raises(Misuse, match="no table dibs_lease where this connection looks"):
            run(finish_on(session_of(conn), "default", claim, b"done", KEEP))
        conn.rollback()


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_transaction_from_before_the_call_is_refused(
    ours: Steps, postgres: PostgresServer, level: IsolationLevel
) -> None:
    """It sees the database as it was before the lease; one that begins after it sees the lease."""
    ours.release(ours.take())
    with postgres.connect() as conn:
        conn.autocommit, conn.isolation_level = False, level
        conn.execute("SELECT 1 FROM dibs_lease")
        claim = begun(ours)
        assert run(finish_on(session_of(conn), "default", claim, b"done", KEEP)) is LossReason.TAKEN
        conn.rollback()
        assert run(finish_on(session_of(conn), "default", claim, b"done", KEEP)) is None
        conn.commit()
    assert isinstance(recalled(ours), Record)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_lease_that_is_taken_after_the_snapshot_fails_the_transaction(
    ours: Steps, theirs: Steps, postgres: PostgresServer, level: IsolationLevel
) -> None:
    claim = begun(ours)
    with postgres.connect() as conn:
        conn.autocommit, conn.isolation_level = False, level
        conn.execute("SELECT 1 FROM dibs_lease")
        ours.release(claim)
        finished(theirs)
        with pytest.raises(psycopg.errors.SerializationFailure):
            run(finish_on(session_of(conn), "default", claim, b"done", KEEP))
        conn.rollback()


def test_a_name_with_a_nul_has_its_own_record(ours: Steps) -> None:
    for name in ("a\x00b", "a\x010b"):
        finished(ours, name)
        record = run(record_store(ours.store).record(name, 5))
        assert record is not None
        assert record.name == name
    assert len(run(record_store(ours.store).records("a", 9, 5))) == 2
