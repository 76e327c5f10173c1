"""A function runs again as long as others are first, with a bound, and under the lock when a crowd is in the way."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.errors import Changed, Deleted, Misuse
from dibs.optimistic import Versioned, retry


class Flaky:
    """Somebody else is first so often."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures, self.runs = failures, 0
        self._error = error or Changed("account id=42", 0, 1)

    def __call__(self) -> int:
        self.runs += 1
        if self.runs <= self.failures:
            raise self._error
        return self.runs


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it would have slept, with the longest of all random waits."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(random.Random, "random", lambda _: 1.0)
    return waits


@pytest.fixture
def client() -> Iterator[dibs.Client]:
    with dibs.connect("memory:optimistic") as client:
        yield client


def test_it_runs_until_it_is_through_and_waits_longer_each_time(slept: list[float]) -> None:
    flaky = Flaky(4)

    @retry(wait=0.1, longest=0.5)
    def work() -> int:
        return flaky()

    assert work() == 5
    assert slept == pytest.approx([0.1, 0.2, 0.4, 0.5])


def test_the_wait_is_random(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    """Those who met once do not meet again."""
    chances = iter([0.25, 0.5])
    monkeypatch.setattr(random.Random, "random", lambda _: next(chances))
    flaky = Flaky(2)
    retry(wait=0.1)(flaky)()
    assert slept == pytest.approx([0.025, 0.1])


def test_the_last_change_comes_out_when_the_bound_is_reached(slept: list[float]) -> None:
    flaky = Flaky(100)
    with pytest.raises(Changed) as changed:
        retry(attempts=3)(flaky)()
    assert "run 3 times" in changed.value.__notes__[0]
    assert (flaky.runs, len(slept)) == (3, 2)


@pytest.mark.parametrize("error", [Deleted("account id=42", 0), ZeroDivisionError(), sqlite3.OperationalError("disk")])
def test_what_no_other_writer_caused_comes_out_at_once(error: Exception) -> None:
    flaky = Flaky(1, error)
    with pytest.raises(type(error)):
        retry()(flaky)()
    assert flaky.runs == 1


def test_a_stale_snapshot_of_sqlite_is_tried_again(tmp_path: Path, slept: list[float]) -> None:
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE number (value INTEGER)")
        db.execute("INSERT INTO number VALUES (0)")
        db.commit()
    runs = []

    @retry()
    def add() -> None:
        runs.append(1)
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN")
            [(seen,)] = db.execute("SELECT value FROM number").fetchall()
            if len(runs) == 1:
                with closing(sqlite3.connect(path)) as other, other:
                    other.execute("UPDATE number SET value = 10")
            db.execute("UPDATE number SET value = ?", (seen + 1,))
            db.execute("COMMIT")

    add()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT value FROM number").fetchone() == (11,)


def test_an_async_function_is_awaited_and_run_again() -> None:
    flaky = Flaky(3)

    @retry(wait=0.001)
    async def work(more: int) -> int:
        await asyncio.sleep(0)
        return flaky() + more

    assert asyncio.run(work(10)) == 14


def test_the_lock_is_taken_after_so_many_runs_and_given_back(client: dibs.Client, slept: list[float]) -> None:
    flaky, held = Flaky(5), list[bool]()

    @retry(lock=lambda number: client.lock(f"account:{number}"), lock_after=2)
    def work(number: int) -> int:
        held.append(client.show(f"account:{number}").holder is not None)
        return flaky()

    assert work(42) == 6
    assert held == [False, False, True, True, True, True]
    assert len(slept) == 2  # under the lock there is nobody to keep away from
    assert client.show("account:42").holder is None


def test_a_lock_that_cannot_be_had_stops_nobody(client: dibs.Client, slept: list[float]) -> None:
    flaky = Flaky(3)
    holder = client.lock("account").acquire()
    with dibs.connect("memory:optimistic") as other:
        assert retry(lock=other.lock("account", timeout=0), lock_after=1)(flaky)() == 4
    holder.release()
    assert len(slept) == 3


def test_a_lease_that_was_lost_does_not_undo_what_was_written(client: dibs.Client, slept: list[float]) -> None:
    lock = client.lock("account")

    @retry(lock=lock, lock_after=1)
    def work() -> str:
        state = client.show("account")
        if state.holder is None:
            raise Changed("account", 0, 1)
        client.evict("account", fence=state.fence)
        return "written"

    assert work() == "written"


def test_an_async_ladder_takes_an_async_lock() -> None:
    flaky = Flaky(2)

    async def main() -> int:
        async with dibs.aio.connect("memory:optimistic-async") as client:

            @retry(lock=client.lock("account"), lock_after=1, wait=0.001)
            async def work() -> int:
                assert ((await client.show("account")).holder is not None) == (flaky.runs > 0)
                return flaky()

            found = await work()
            assert (await client.show("account")).holder is None
            return found

    assert asyncio.run(main()) == 3


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"attempts": True}, {"lock_after": 0}, {"wait": 0}, {"longest": -1}]
)
def test_what_cannot_be_right_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        retry(**options)


def test_a_generator_is_refused() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(Misuse, match="generator"):
        retry()(numbers)


def test_eight_threads_lose_no_update(tmp_path: Path, client: dibs.Client) -> None:
    """The pair that decides, without a lock at first: each reads, computes and writes, and runs again if overtaken."""
    path, account = tmp_path / "data.db", Versioned("account")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, version INTEGER DEFAULT 0)")
        db.execute("INSERT INTO account (id, balance) VALUES (42, 0)")
        db.commit()

    @retry(attempts=1000, wait=0.001, longest=0.01, lock=lambda: client.lock("account:42"))
    def add() -> None:
        with closing(sqlite3.connect(path, timeout=20)) as db:
            [(balance, version)] = db.execute("SELECT balance, version FROM account").fetchall()
            time.sleep(0.001)
            account.update(db, {"id": 42}, version, {"balance": balance + 1})
            db.commit()

    threads = [threading.Thread(target=lambda: [add() for _ in range(10)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT balance, version FROM account").fetchone() == (80, 80)
