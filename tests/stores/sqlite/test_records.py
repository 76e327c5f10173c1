"""Records in the embedded store: they outlive a restart, are on the disk at once, and are deleted in small bites."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import LossReason
from dibs.holder import Record
from dibs.runtime import run
from dibs.stores.sqlite.port.connection import Connection
from dibs.stores.sqlite.records import HOUR, SWEPT
from dibs.stores.sqlite.store import SQLiteStore
from dibs.stores.store import Ask, Claim, Grant
from stores.sqlite.test_store import World

KEEP = 60.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for store in world.stores:
        run(store.close())


def begun(store: SQLiteStore, name: str = "x", *, after: int = 0) -> Claim:
    token = f"token {name} {after}"
    answer = run(store.grant_unless_recorded(Ask(name, token, 30.0, "", False), after, 1.0))
    assert isinstance(answer, Grant), answer
    return Claim(name, token, answer.fence, answer.ttl)


def finished(store: SQLiteStore, name: str = "x", *, keep: float = KEEP) -> Claim:
    claim = begun(store, name)
    assert run(store.finish(claim, b"done", keep, 1.0)) is None
    return claim


def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is executed from now on, by its first words."""
    seen: list[str] = []
    for method in ("rows", "changed"):
        original = getattr(Connection, method)

        def noting(connection: Connection, sql: str, values: Any = (), original: Any = original) -> Any:
            seen.append(" ".join(sql.split()[:3]))
            return original(connection, sql, values)

        monkeypatch.setattr(Connection, method, noting)
    return seen


def test_a_record_outlives_a_restart_of_the_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(world.client())
    monkeypatch.setattr("dibs.stores.sqlite.port.database.boot_id", lambda: "another boot")
    world.clock.time = 3.0
    found = run(world.client().grant_unless_recorded(Ask("x", "t", 30.0, "", False), 0, 1.0))
    assert isinstance(found, Record)
    assert KEEP - 10 < found.expires_in <= KEEP


def test_who_held_it_before_a_restart_cannot_finish(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = begun(world.client())
    monkeypatch.setattr("dibs.stores.sqlite.port.database.boot_id", lambda: "another boot")
    assert run(world.client().finish(claim, b"late", KEEP, 1.0)) == LossReason.EXPIRED


def test_a_record_is_on_the_disk_before_it_is_said_to_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything else is as quick as before."""
    seen = statements(monkeypatch)
    store = world.client()
    claim = begun(store)
    seen.clear()
    assert run(store.finish(claim, b"done", KEEP, 1.0)) is None
    assert seen.index("PRAGMA synchronous=FULL") < seen.index("BEGIN IMMEDIATE") < seen.index("COMMIT")
    assert seen.index("COMMIT") < seen.index("PRAGMA synchronous=NORMAL")
    assert store._port.database.rows("PRAGMA synchronous") == [(1,)]


def test_a_replay_takes_no_write_lock(world: World) -> None:
    """Somebody else may be writing all the time."""
    store = world.client()
    finished(store)
    with sqlite3.connect(world.path, isolation_level=None) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert isinstance(run(store.grant_unless_recorded(Ask("x", "t", 30.0, "", False), 0, 0.2)), Record)
        writer.execute("ROLLBACK")


def test_records_that_are_over_are_deleted_a_few_at_a_time(world: World) -> None:
    """With the rows of their locks, if nobody has used those since and the clock has passed their fences."""
    store = world.client()
    for number in range(SWEPT + 5):
        finished(store, f"over {number}", keep=3600)
    finished(store, "recent", keep=3600)
    kept = finished(store, "kept", keep=7200)
    begun(store, "held")
    world.sql("UPDATE record SET ends = ends - 3700000000")
    world.sql(f"UPDATE lease SET fence = fence - {HOUR + 10**6} WHERE name LIKE 'over%' OR name = 'held'")
    finished(store, "one")
    assert world.sql("SELECT count(*) FROM record WHERE name LIKE 'over%'") == [(5,)]
    assert world.sql("SELECT count(*) FROM lease WHERE name LIKE 'over%'") == [(5,)]
    finished(store, "two")
    assert {name for (name,) in world.sql("SELECT name FROM record")} == {"kept", "one", "two"}
    assert {name for (name,) in world.sql("SELECT name FROM lease")} == {"recent", "kept", "held", "one", "two"}
    assert begun(store, "kept", after=kept.fence).fence > kept.fence


def test_a_file_of_before_gets_the_table(world: World) -> None:
    store = world.client()
    world.take(store, "t")
    run(store.close())
    world.sql("DROP TABLE record")
    assert isinstance(run(world.client().record("x", 1.0)), type(None))
    finished(world.client(), "y")
