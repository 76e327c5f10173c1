"""The locks that are compared: dibs, other libraries, and floors, each as something to put after `with`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import importlib.util
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dibs
import dibs.aio

Guard = Callable[[], AbstractContextManager[object]]
"""Called for each use, because some libraries want a new object each time."""

Opened = AbstractContextManager[Guard]

DIBS, DIBS_ASYNC, DIBS_MEMORY = "dibs", "dibs, async", "dibs, memory:"
FLOCK = "flock, kept open (floor)"
BARE, BARE_FULL = "bare statements, NORMAL (floor)", "bare statements, FULL"
PATIENT = "SQLite, BEGIN IMMEDIATE held"
PORTALOCKER, FILELOCK, FASTENERS, MITHRIL = "portalocker", "filelock", "fasteners", "mithril-locks"

FOR_EVER = 3600.0
"""Seconds: nobody gives up in a benchmark."""


def opened(kind: str, folder: Path, name: str) -> Opened:
    """The lock *name* of one *kind*; locks in the same *folder* share what they are kept in."""
    return KINDS[kind](folder, name)


def missing() -> list[str]:
    """The other libraries that are not installed here."""
    return [kind for kind, module in MODULES.items() if importlib.util.find_spec(module) is None]


@contextlib.contextmanager
def _dibs(folder: Path, name: str) -> Iterator[Guard]:
    with dibs.connect(f"sqlite://{folder}/dibs.db") as client:
        lock = client.lock(name)
        yield lambda: lock


@contextlib.contextmanager
def _dibs_memory(_folder: Path, name: str) -> Iterator[Guard]:
    with dibs.connect("memory:") as client:
        lock = client.lock(name)
        yield lambda: lock


@contextlib.contextmanager
def _dibs_async(folder: Path, name: str) -> Iterator[Guard]:
    with asyncio.Runner() as runner:
        client = dibs.aio.connect(f"sqlite://{folder}/dibs.db")
        lock = client.lock(name)
        yield lambda: _InLoop(runner, lock)
        runner.run(client.close())


class _InLoop:
    """An async lock, used from outside its event loop: for questions of milliseconds, where that costs nothing."""

    def __init__(self, runner: asyncio.Runner, lock: dibs.aio.Lock) -> None:
        self._runner, self._lock = runner, lock

    def __enter__(self) -> None:
        self._lease = self._runner.run(self._lock.acquire())

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._lease.release())


@contextlib.contextmanager
def _flock(folder: Path, name: str) -> Iterator[Guard]:
    lock = _Flock(folder / f"{name}.flock")
    yield lambda: lock


class _Flock:
    """The kernel's own blocking lock: no timeout, no ttl, no fence, and nobody to ask who has it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


class Bare:
    """The statements that no lease in SQLite can do without, with everything prepared: the floor."""

    def __init__(self, path: Path, name: str, synchronous: str) -> None:
        self._sqlite = sqlite3.connect(path, timeout=FOR_EVER, isolation_level=None, check_same_thread=False)
        self._execute, self._name = self._sqlite.execute, name
        self._execute("PRAGMA journal_mode=WAL")
        self._execute(f"PRAGMA synchronous={synchronous}")
        self._execute("CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, token TEXT, ends REAL, fence INTEGER)")
        self._execute("INSERT OR IGNORE INTO lease VALUES (?, NULL, 0, 0)", (name,))

    def __enter__(self) -> None:
        self._execute("BEGIN IMMEDIATE")
        self._execute(
            "UPDATE lease SET token='mine', ends=1, fence=fence+1 WHERE name=? AND token IS NULL", (self._name,)
        )
        self._execute("COMMIT")

    def __exit__(self, *error: object) -> None:
        self._execute("BEGIN IMMEDIATE")
        self._execute("UPDATE lease SET token=NULL WHERE name=? AND token='mine'", (self._name,))
        self._execute("COMMIT")

    def close(self) -> None:
        self._sqlite.close()


@contextlib.contextmanager
def _bare(folder: Path, name: str, synchronous: str = "NORMAL") -> Iterator[Guard]:
    with contextlib.closing(Bare(folder / f"bare-{synchronous}.db", name, synchronous)) as lock:
        yield lambda: lock


class _Patient:
    """A write transaction of SQLite as the lock, with its own busy handler to wait."""

    def __init__(self, path: Path) -> None:
        self._execute = sqlite3.connect(path, timeout=FOR_EVER, isolation_level=None).execute
        self._execute("PRAGMA journal_mode=WAL")

    def __enter__(self) -> None:
        self._execute("BEGIN IMMEDIATE")

    def __exit__(self, *error: object) -> None:
        self._execute("COMMIT")


@contextlib.contextmanager
def _patient(folder: Path, name: str) -> Iterator[Guard]:
    lock = _Patient(folder / f"{name}.db")
    yield lambda: lock


@contextlib.contextmanager
def _portalocker(folder: Path, name: str) -> Iterator[Guard]:
    lock = _imported(PORTALOCKER).Lock(folder / f"{name}.portalocker", timeout=FOR_EVER)
    yield lambda: lock


@contextlib.contextmanager
def _filelock(folder: Path, name: str) -> Iterator[Guard]:
    lock = _imported(FILELOCK).FileLock(folder / f"{name}.filelock")
    yield lambda: lock


@contextlib.contextmanager
def _fasteners(folder: Path, name: str) -> Iterator[Guard]:
    lock = _imported(FASTENERS).InterProcessLock(folder / f"{name}.fasteners")
    yield lambda: lock


@contextlib.contextmanager
def _mithril(folder: Path, name: str) -> Iterator[Guard]:
    mithril, backends = _imported(MITHRIL), importlib.import_module("mithril.backends")
    engine = importlib.import_module("sqlalchemy").create_engine(f"sqlite:///{folder}/mithril.db")
    importlib.import_module("structlog").configure(wrapper_class=_quiet())
    backend = backends.SQLiteBackend(engine)
    yield lambda: mithril.Lock(name, backend=backend, timeout=FOR_EVER)
    engine.dispose()


def _quiet() -> Any:
    """Its log lines to the terminal would be most of what is measured."""
    return importlib.import_module("structlog").make_filtering_bound_logger(50)


def _imported(kind: str) -> Any:
    return importlib.import_module(MODULES[kind])


MODULES = {PORTALOCKER: "portalocker", FILELOCK: "filelock", FASTENERS: "fasteners", MITHRIL: "mithril"}

KINDS: dict[str, Callable[[Path, str], Opened]] = {
    DIBS: _dibs,
    DIBS_ASYNC: _dibs_async,
    DIBS_MEMORY: _dibs_memory,
    BARE: _bare,
    BARE_FULL: lambda folder, name: _bare(folder, name, "FULL"),
    PATIENT: _patient,
    FLOCK: _flock,
    PORTALOCKER: _portalocker,
    FILELOCK: _filelock,
    FASTENERS: _fasteners,
    MITHRIL: _mithril,
}
