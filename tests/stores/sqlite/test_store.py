"""The embedded store's rules, one process, with a clock that the test sets: nothing here waits."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import Ask, Busy, Claim, Grant
from dibs.stores.sqlite.grant import LAST_FENCE
from dibs.stores.sqlite.port.database import Database
from dibs.stores.sqlite.port.runner import BlockingPort
from dibs.stores.sqlite.store import SQLiteStore, open_url


class Clock(ThreadRuntime):
    """A runtime whose time stands still until the test moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.now = lambda: self.time


class World:
    """Several clients of one file, each with its own sign of life."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clock = folder / "locks.db", Clock()
        self.stores: list[SQLiteStore] = []
        self.fences: dict[tuple[str, str], int] = {}

    def client(self, namespace: str = "") -> SQLiteStore:
        store = open_url(f"sqlite://{self.path}", namespace, self.clock)
        self.stores.append(store)
        return store

    def ask(
        self, store: SQLiteStore, token: str, name: str = "x", *, queue: bool = False, ttl: float = 30.0
    ) -> Grant | Busy:
        answer = run(store.grant(Ask(name, token, ttl, "note", queue), 1.0))
        if isinstance(answer, Grant):
            self.fences[name, token] = answer.fence
        return answer

    def take(self, store: SQLiteStore, token: str, name: str = "x", *, ttl: float = 30.0) -> int:
        answer = self.ask(store, token, name, ttl=ttl)
        assert isinstance(answer, Grant)
        return answer.fence

    def release(self, store: SQLiteStore, token: str, name: str = "x") -> LossReason | None:
        return run(store.release(name, token, 1.0))

    def renew(self, store: SQLiteStore, *claims: tuple[str, str]) -> list[LossReason | None]:
        return run(store.renew([Claim(*claim, self.fences.get(claim, 1), 30.0) for claim in claims], 1.0))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for store in world.stores:
        run(store.close())


def database(store: SQLiteStore) -> Database:
    assert isinstance(store._port, BlockingPort)
    return store._port.database


def test_opening_does_no_io(world: World) -> None:
    world.client()
    assert not world.path.exists()


@pytest.mark.parametrize("name", ["a\0b", "a", "A", "%", "_", "ä", "a\u0308", "名", "\U0010ffff", " a", "a\n", "'"])
def test_every_text_is_a_name_of_its_own(world: World, name: str) -> None:
    a, b = world.client(), world.client("other")
    for token, other in enumerate(
        ["a", "A", "%", "_", "ä", "a\u0308", "a\0", "a\0b", "a\0c", " a", "名", "\U0010ffff"]
    ):
        if other != name:
            world.take(a, f"other {token}", other)
    world.take(a, "mine", name)
    assert isinstance(world.ask(a, "yours", name), Busy)
    world.take(b, "in another namespace", name)


@pytest.mark.parametrize("prefix", ["", "a", "A", "%", "_", "a%", "a_", "a\0", "\U0010ffff"])
def test_a_prefix_is_compared_letter_by_letter(world: World, prefix: str) -> None:
    names = ["a", "A", "ab", "a%", "a%b", "a_b", "a\0b", "axb", "%", "_", "b", "\U0010ffff", "\U0010ffffx"]
    store = world.client()
    for name in names:
        world.take(store, f"t{name}", name)
    found = [holder.name for holder in run(store.holders(prefix, 1.0))]
    assert found == sorted(name for name in names if name.startswith(prefix))


def test_the_same_token_gets_the_same_fence_and_a_full_lease(world: World) -> None:
    a, b = world.client(), world.client()
    fence = world.take(a, "t", ttl=10)
    world.clock.time += 8
    assert world.take(a, "t", ttl=10) == fence
    world.clock.time += 8
    assert isinstance(world.ask(b, "u"), Busy)


def test_a_token_whose_lease_is_over_gets_a_new_fence(world: World) -> None:
    store = world.client()
    fence = world.take(store, "t", ttl=10)
    world.clock.time += 11
    assert world.take(store, "t") > fence


def test_busy_tells_the_holder_and_when_it_ends(world: World) -> None:
    a, b = world.client(), world.client()
    fence = world.take(a, "t", ttl=10)
    world.clock.time += 4
    busy = world.ask(b, "u")
    assert isinstance(busy, Busy)
    assert busy.holder is not None
    assert (busy.holder.fence, busy.holder.note) == (fence, "note")
    assert busy.retry_in == pytest.approx(6, abs=0.01)


def test_the_fence_rises_over_release_eviction_expiry_and_a_clock_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, fences = world.client(), []
    fences.append(world.take(store, "1"))
    world.release(store, "1")
    monkeypatch.setattr(Database, "wall_clock", lambda self: 5)
    fences.append(world.take(store, "2"))
    assert run(store.evict("x", fences[-1], "test", 1.0))
    fences.append(world.take(store, "3", ttl=1))
    world.clock.time += 2
    fences.append(world.take(store, "4"))
    assert fences == sorted(set(fences))


def test_the_fence_rises_when_the_file_was_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = world.client()
    fence = world.take(a, "t")
    run(a.close())
    world.path.unlink()
    assert world.take(world.client(), "u") > fence


def test_a_fence_that_cannot_rise_any_more_is_an_error(world: World) -> None:
    store = world.client()
    world.take(store, "t")
    world.release(store, "t")
    world.sql(f"UPDATE lease SET fence = {LAST_FENCE - 1}")
    assert world.take(store, "u") == LAST_FENCE
    world.release(store, "u")
    with pytest.raises(StoreUnavailable, match="last number"):
        world.ask(store, "v")


def test_after_a_restart_of_the_machine_nothing_is_held(world: World) -> None:
    a, b = world.client(), world.client()
    fence = world.take(a, "t")
    database(a).boot = database(b).boot = "another"
    world.ask(b, "warm", "y")  # opens it
    database(b).boot = "another"
    assert run(b.show("x", 1.0)).holder is None
    assert world.renew(a, ("x", "t")) == [LossReason.EXPIRED]
    assert world.take(b, "u") > fence


def test_reasons_of_a_loss(world: World) -> None:
    a, b = world.client(), world.client()
    assert world.release(a, "never") is LossReason.TAKEN
    fence = world.take(a, "evicted")
    run(b.evict("x", fence, "stuck", 1.0))
    assert world.renew(a, ("x", "evicted")) == [LossReason.EVICTED]
    assert world.release(a, "evicted") is LossReason.EVICTED
    world.take(a, "expired", ttl=1)
    world.clock.time += 2
    assert world.renew(a, ("x", "expired")) == [LossReason.EXPIRED]
    assert world.release(a, "expired") is LossReason.EXPIRED
    world.take(a, "taken", ttl=1)
    world.clock.time += 2
    world.take(b, "taker")
    assert world.release(a, "taken") is LossReason.TAKEN
    assert world.release(b, "taker") is None
    assert world.release(b, "taker") is LossReason.TAKEN


def test_renewals_are_answered_in_order_and_lengthen_only_what_holds(world: World) -> None:
    a = world.client()
    for name in "pqr":
        world.take(a, f"t{name}", name, ttl=10)
    world.release(a, "tq", "q")
    world.clock.time += 9
    assert world.renew(a, ("r", "tr"), ("q", "tq"), ("p", "tp")) == [None, LossReason.TAKEN, None]
    world.clock.time += 9
    assert [holder.name for holder in run(a.holders("", 1.0))] == ["p", "r"]


def test_only_the_grant_with_that_fence_is_evicted(world: World) -> None:
    store = world.client()
    fence = world.take(store, "t")
    assert not run(store.evict("x", fence - 1, "", 1.0))
    assert run(store.evict("x", fence, "stuck", 1.0))
    assert not run(store.evict("x", fence, "again", 1.0))
    state = run(store.show("x", 1.0))
    assert state.holder is None
    assert state.evicted is not None
    assert (state.evicted.fence, state.evicted.reason) == (fence, "stuck")


def test_a_client_that_is_gone_holds_nothing(world: World) -> None:
    a, b = world.client(), world.client()
    world.take(a, "t")
    run(a.close())
    assert run(b.show("x", 1.0)).holder is None
    assert run(b.holders("", 1.0)) == []
    world.take(b, "u")


def test_a_detached_lease_outlives_its_client_and_can_be_attached(world: World) -> None:
    a, b, c = world.client(), world.client(), world.client()
    claim = Claim("x", "t", world.take(a, "t"), 30.0)
    run(a.detach(claim, 1.0))
    run(a.close())
    assert isinstance(world.ask(b, "u"), Busy)
    run(c.attach(claim, "mine now", 1.0))
    holder = run(b.show("x", 1.0)).holder
    assert holder is not None
    assert holder.note == "mine now"
    run(c.close())
    world.take(b, "u")


def test_a_try_does_not_barge_past_who_waits_until_the_reservation_is_over(world: World) -> None:
    a, b, c = world.client(), world.client(), world.client()
    world.take(a, "t")
    world.ask(b, "waits", queue=True)
    world.release(a, "t")
    busy = world.ask(c, "barges")
    assert isinstance(busy, Busy)
    assert busy.holder is not None
    assert busy.holder.fence == 0
    assert 0 < busy.retry_in <= 0.1
    world.clock.time += 0.11
    world.take(c, "barges")
    assert run(c.show("x", 1.0)).waiting == ()  # who does not come in time loses its place


def test_the_first_in_line_gets_it_and_its_ticket_is_gone(world: World) -> None:
    a, b, c = world.client(), world.client(), world.client()
    world.take(a, "t")
    world.ask(b, "first", queue=True)
    world.ask(b, "first", queue=True)
    world.ask(c, "second", queue=True)
    assert len(run(a.show("x", 1.0)).waiting) == 2
    world.release(a, "t")
    assert isinstance(world.ask(c, "second", queue=True), Busy)
    world.take(b, "first")
    assert len(run(a.show("x", 1.0)).waiting) == 1


def test_a_dead_first_in_line_is_passed_over(world: World) -> None:
    a, b, c = world.client(), world.client(), world.client()
    world.take(a, "t")
    world.ask(b, "dead", queue=True)
    world.ask(c, "lives", queue=True)
    run(b.close())
    bell = database(c).bell("lives")
    assert bell is not None
    world.release(a, "t")
    assert run(ThreadRuntime().readable(bell.fd, 0))
    world.take(c, "lives")


def test_who_leaves_the_line_when_it_is_its_turn_wakes_the_next(world: World) -> None:
    a, b, c = world.client(), world.client(), world.client()
    world.take(a, "t")
    world.ask(b, "first", queue=True)
    world.ask(c, "second", queue=True)
    bell = database(c).bell("second")
    assert bell is not None
    world.release(a, "t")
    assert not run(ThreadRuntime().readable(bell.fd, 0))
    world.release(b, "first")
    assert run(ThreadRuntime().readable(bell.fd, 0))


def test_foreign_code_that_opens_and_closes_the_file_loses_no_lock(world: World) -> None:
    a, b = world.client(), world.client()
    world.take(a, "t")
    for _ in range(3):
        world.path.read_bytes()
        Path(f"{world.path}-shm").read_bytes()
        world.sql("SELECT * FROM lease")
    assert isinstance(world.ask(b, "u"), Busy)
    assert world.renew(a, ("x", "t")) == [None]


def test_a_deleted_directory_is_made_again(world: World, tmp_path: Path) -> None:
    world.path = tmp_path / "deep" / "locks.db"
    store = world.client()
    world.take(store, "t")
    for path in sorted((tmp_path / "deep").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "deep").rmdir()
    assert world.renew(store, ("x", "t")) == [LossReason.TAKEN]
    world.take(store, "u")


def spoil(store: SQLiteStore, pragma: str) -> None:
    database(store).rows(pragma)


@pytest.mark.parametrize(
    ("pragma", "sentence"), [("PRAGMA max_page_count=1", "no space left"), ("PRAGMA query_only=1", "only be read")]
)
def test_a_disk_that_takes_no_more_is_named_and_nothing_happened(world: World, pragma: str, sentence: str) -> None:
    store = world.client()
    world.take(store, "t")
    spoil(store, pragma)
    with pytest.raises(StoreUnavailable, match=sentence) as raised:
        for number in range(100):
            world.ask(store, f"{number}", "n" * 900 + str(number))
    assert isinstance(raised.value.__cause__, sqlite3.Error)
    assert world.renew(store, ("x", "t")) == [None]  # the next step opens the file anew


def test_a_file_that_is_no_database_is_refused(world: World) -> None:
    world.path.write_bytes(b"something else entirely, longer than the header of a database file would be " * 20)
    world.path.chmod(0o600)
    with pytest.raises(StoreUnavailable, match="not an SQLite database"):
        world.ask(world.client(), "t")


def change(world: World, statements: list[str]) -> bytes:
    for statement in statements:
        world.sql(statement)
    world.path.chmod(0o600)
    return world.path.read_bytes()


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE theirs (x)"],
        ["PRAGMA application_id=77"],
        ["PRAGMA user_version=1"],
        ["PRAGMA application_id=1684628083", "PRAGMA user_version=2"],
    ],
)
def test_a_file_of_another_program_or_a_newer_version_is_refused_untouched(world: World, statements: list[str]) -> None:
    before = change(world, statements)
    with pytest.raises(Misuse, match=r"another program|newer dibs"):
        world.ask(world.client(), "t")
    assert world.path.read_bytes() == before
    assert [path.name for path in world.path.parent.iterdir()] == ["locks.db"]


def test_everything_is_private(world: World, tmp_path: Path) -> None:
    world.path = tmp_path / "a" / "b" / "locks.db"
    world.take(world.client(), "t")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")}
    assert {mode for name, mode in modes.items() if name in {"b", "locks.db.d", "alive", "bells"}} == {0o700}
    assert {modes[name] for name in ("locks.db", "locks.db-wal", "locks.db-shm")} == {0o600}


def test_what_the_dead_left_is_swept_at_the_next_opening(world: World) -> None:
    a, b = world.client(), world.client()
    world.take(a, "t")
    beside = Path(f"{world.path}.d")
    (beside / "alive" / "0123456789abcdef").touch()
    stale = beside / "bells" / "0123456789abcdef.1"
    stale.touch()
    world.take(b, "u", "y")
    assert not stale.exists()
    assert len(list((beside / "alive").iterdir())) == 2


def test_an_interrupted_step_leaves_no_transaction_behind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = world.client(), world.client()
    world.take(a, "t")
    world.ask(b, "warm", "y")

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dibs.stores.sqlite.grant.queue", interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.ask(b, "u", queue=True)
    monkeypatch.undo()
    assert world.release(a, "t") is None
    world.take(b, "u")


def test_five_hundred_leases_are_renewed_in_one_transaction(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.client()
    claims = [(f"n{number}", "t") for number in range(500)]
    for name, token in claims:
        world.take(store, token, name)
    begun: list[str] = []
    rows = database(store).rows

    def recorded(sql: str, *values: Any) -> list[tuple[Any, ...]]:
        begun.append(sql)
        return rows(sql, *values)

    monkeypatch.setattr(database(store)._connection, "rows", recorded)
    assert world.renew(store, *claims) == [None] * 500
    assert begun == ["BEGIN IMMEDIATE", "COMMIT"]


def test_those_who_come_first_at_the_same_time_make_one_database(world: World) -> None:
    stores, start, answers = [world.client() for _ in range(8)], threading.Barrier(8), []

    def come(number: int) -> None:
        start.wait(10)
        answers.append(run(stores[number].grant(Ask("x", f"{number}", 30.0, "", False), 10.0)))

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sum(isinstance(answer, Grant) for answer in answers) == 1
    assert len(answers) == 8
