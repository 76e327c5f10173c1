"""The two ways to run steps: in the caller's thread, and in a worker that keeps the order of the calls."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import run
from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.sqlite.deaths import bury
from dibs.stores.sqlite.port.connection import Connection
from dibs.stores.sqlite.port.database import Database
from dibs.stores.sqlite.port.location import Place
from dibs.stores.sqlite.port.runner import BlockingPort, WorkerPort
from dibs.stores.sqlite.schema import prepare
from tempo import took


def one(db: Database) -> object:
    return db.rows("SELECT 1")[0][0]


def with_worker(path: Path, main: Callable[[WorkerPort], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        runtime = AsyncioRuntime()
        runtime.enter()
        port = WorkerPort(Database(str(path / "x.db"), "", runtime.now, prepare, bury), runtime)
        await main(port)
        await port.close()

    asyncio.run(whole())


def blocking(path: Path) -> BlockingPort:
    runtime = ThreadRuntime()
    return BlockingPort(Database(str(path / "x.db"), "", runtime.now, prepare, bury), runtime)


def test_the_worker_is_another_thread_and_the_loop_goes_on(tmp_path: Path) -> None:
    async def main(port: WorkerPort) -> None:
        go = threading.Event()
        call = asyncio.create_task(port.call(5.0, lambda db: (go.wait(5), threading.current_thread())))
        await asyncio.sleep(0)
        go.set()
        waited, thread = await call
        assert waited
        assert thread is not threading.current_thread()
        assert await port.call(5.0, one) == 1

    with_worker(tmp_path, main)


def test_what_follows_a_cancelled_call_is_done_after_it(tmp_path: Path) -> None:
    async def main(port: WorkerPort) -> None:
        done: list[str] = []
        go = threading.Event()
        first = asyncio.create_task(port.call(5.0, lambda db: go.wait(5)))
        grant = asyncio.create_task(port.call(5.0, lambda db: done.append("grant")))
        await asyncio.sleep(0.01)
        grant.cancel()
        release = asyncio.create_task(port.call(5.0, lambda db: done.append("release")))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, release)
        assert done == ["grant", "release"]

    with_worker(tmp_path, main)


def test_a_worker_that_hangs_makes_nobody_wait_longer_than_it_may(tmp_path: Path) -> None:
    async def main(port: WorkerPort) -> None:
        go = threading.Event()
        hanging = asyncio.create_task(port.call(0.05, lambda db: go.wait(10)))
        await asyncio.sleep(0.01)
        with took(2):
            with pytest.raises(StoreUnavailable) as never_begun:
                await port.call(0.01, one)
            assert not isinstance(never_begun.value, OutcomeUnknown)
            with pytest.raises(OutcomeUnknown):
                await hanging
        go.set()

    with_worker(tmp_path, main)


def test_an_error_comes_out_where_it_was_asked_for(tmp_path: Path) -> None:
    async def main(port: WorkerPort) -> None:
        with pytest.raises(StoreUnavailable, match="refused"):
            await port.call(5.0, lambda db: db.rows("SELECT nothing"))
        assert await port.call(5.0, one) == 1

    with_worker(tmp_path, main)


def workers() -> int:
    return sum(thread.name == "dibs sqlite" for thread in threading.enumerate())


def test_closing_ends_the_worker_and_so_does_forgetting(tmp_path: Path) -> None:
    async def forget(path: Path) -> None:
        runtime = AsyncioRuntime()
        runtime.enter()
        port = WorkerPort(Database(str(path / "x.db"), "", runtime.now, prepare, bury), runtime)
        await port.call(5.0, one)
        await port.call(5.0, Database.close)

    before = workers()
    asyncio.run(forget(tmp_path))
    gc.collect()

    async def close(port: WorkerPort) -> None:
        await port.call(5.0, one)

    with_worker(tmp_path, close)
    until = time.monotonic() + 5
    while workers() > before:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_forgetting_closes_the_database_without_a_word(tmp_path: Path) -> None:
    def is_open() -> bool:
        files = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        return str(tmp_path / "x.db") in files

    port: BlockingPort | None = blocking(tmp_path)
    assert port is not None
    assert run(port.call(5.0, one)) == 1
    assert is_open()
    del port
    gc.collect()  # a word would be a ResourceWarning: an error here
    assert not is_open()


def test_a_database_that_cannot_be_opened_is_forgotten_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir()
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        Connection(Place(str(tmp_path / "x.db")), "sqlite:", time.monotonic)
    gc.collect()


def test_threads_take_turns_and_give_up_in_time(tmp_path: Path) -> None:
    port, go, inside = blocking(tmp_path), threading.Event(), threading.Event()

    def hold(db: Database) -> None:
        inside.set()
        go.wait(5)

    thread = threading.Thread(target=lambda: run(port.call(5.0, hold)))
    thread.start()
    inside.wait(5)
    with pytest.raises(StoreUnavailable, match="another thread"):
        run(port.call(0.02, one))
    go.set()
    thread.join(5)
    assert run(port.call(1.0, one)) == 1
    run(port.close())


def test_a_signal_handler_inside_a_step_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    port = blocking(tmp_path)

    def interrupted(db: Database) -> object:
        with pytest.raises(StoreUnavailable, match="signal handler"):
            run(port.call(1.0, one))
        return one(db)

    assert run(port.call(1.0, interrupted)) == 1
    assert run(port.call(1.0, one)) == 1
    run(port.close())


WAIT = """INSERT INTO waiter (namespace, name, token, process, since, host, pid, user, note)
    VALUES ('', 'x', 't', 'p', 0, '', 0, '', '')"""


def interrupted_in_a_transaction(db: Database) -> None:
    with db.transaction():
        db.rows(WAIT)
        raise KeyboardInterrupt


def waiting(db: Database) -> int:
    count: int = db.rows("SELECT count(*) FROM waiter")[0][0]
    return count


def test_an_interrupted_transaction_is_undone(tmp_path: Path) -> None:
    port = blocking(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(port.call(1.0, interrupted_in_a_transaction))
    assert run(port.call(1.0, waiting)) == 0
    run(port.close())


def test_an_interrupt_between_begin_and_who_undoes_it_leaves_the_database_to_others(tmp_path: Path) -> None:
    port, other = blocking(tmp_path), blocking(tmp_path)

    def interrupted(db: Database) -> None:
        db.rows("BEGIN IMMEDIATE")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(port.call(1.0, interrupted))
    run(other.call(0.1, lambda db: db.rows(WAIT)))
    assert run(port.call(1.0, waiting)) == 1
    run(port.close())
    run(other.close())


@pytest.mark.parametrize("part", ["Liveness", "Bells"])
def test_an_interrupt_while_it_is_opened_is_over_at_the_next_step(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    port = blocking(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(f"dibs.stores.sqlite.port.database.{part}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(port.call(1.0, one))
    assert run(port.call(1.0, lambda db: (db.bells, db.process)[1]))
    run(port.close())


def test_a_closed_port_is_not_opened_again(tmp_path: Path) -> None:
    port = blocking(tmp_path)
    assert run(port.call(1.0, one)) == 1
    run(port.close())
    with pytest.raises(StoreUnavailable, match="closed"):
        run(port.call(1.0, one))

    async def main(port: WorkerPort) -> None:
        await port.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await port.call(1.0, one)

    with_worker(tmp_path, main)


def test_a_write_that_could_not_be_undone_has_an_unknown_outcome_and_is_over_at_the_next_step(tmp_path: Path) -> None:
    port = blocking(tmp_path)

    def fail_to_roll_back(db: Database) -> None:
        assert db._connection is not None
        execute = db._connection._execute

        def failing(sql: str, values: Any = ()) -> sqlite3.Cursor:
            if sql == "ROLLBACK":
                raise sqlite3.OperationalError("disk I/O error")
            return execute(sql, values)

        db._connection._execute = failing
        interrupted_in_a_transaction(db)

    with pytest.raises(OutcomeUnknown, match="could not be undone"):
        run(port.call(1.0, fail_to_roll_back))
    assert run(port.call(1.0, waiting)) == 0
    run(port.close())
