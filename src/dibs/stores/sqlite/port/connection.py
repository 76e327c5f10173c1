"""One connection to an SQLite file: patient when others write, all or nothing, and aware of being cut off."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.fork import never_close
from dibs.stores.sqlite.port.errors import explained, is_busy
from dibs.stores.sqlite.port.location import Place
from dibs.stores.sqlite.port.write_queue import Gate

Rows = list[tuple[Any, ...]]
T = TypeVar("T")

PATIENCE = 0.05
"""Seconds in which the gate is expected to open; whoever is inside may have been stopped, so then we go on without."""

PAUSE = 0.00005
"""Seconds between two tries of the one inside the gate: a write takes about 15 µs."""

_NO_CHECKPOINT_ON_CLOSE = 1006
"""SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, which the module has no name for before Python 3.12."""

WARNS_OF_NUMBERS = (3, 12) <= sys.version_info < (3, 12, 4)
"""Whether Python takes ``?1`` for a name, and warns of values in a sequence: https://github.com/python/cpython/issues/117995."""

_open: dict[int, weakref.ref[Connection]] = {}
"""All connections of this process. Threads come and go meanwhile: `list` of it is one step, a weak set's is not."""

TICK = 2_100_000_000
"""Nanoseconds: longer than a file system gives the same time to two changes of a directory; some count in seconds."""

_spoilt: set[int] = set()
"""The files (inodes) of which this process has a connection of its parent's that cannot be closed."""

LONG = 0.02
"""Seconds after which the one inside tries more rarely: the writer it waits for does not seem to be running."""


class Connection:
    """A connection for one thread at a time."""

    def __init__(self, place: Place, url: str, now: Callable[[], float]) -> None:
        self.until = 0.0
        """The moment when the current step has to be over."""
        self.broken = False
        """Whether it failed in a way that a new connection may cure."""
        self._place, self._url, self._now = place, url, now
        self._gate: Gate | None = None
        self._files: tuple[int, ...] = ()  # inodes
        self._folder = (0, 0)
        self._refuse_company_adrift()
        # SQLite's own waiting is off (timeout=0): it starves. isolation_level=None: we begin transactions ourselves.
        try:
            self._sqlite = sqlite3.connect(
                place.path, timeout=0, isolation_level=None, check_same_thread=False, factory=_Forgettable
            )
        except sqlite3.Error as exc:
            raise explained(exc, url) from exc
        self._never_tidies = False
        if hasattr(self._sqlite, "setconfig"):  # Python 3.12: whoever leaves last does not tidy the log away
            self._sqlite.setconfig(_NO_CHECKPOINT_ON_CLOSE, True)
            self._never_tidies = True
        self._execute: Callable[..., sqlite3.Cursor] = self._sqlite.execute
        if WARNS_OF_NUMBERS:
            self._execute = partial(_execute_by_names, self._sqlite.execute)
        _open[id(self)] = weakref.ref(self)

    def rows(self, sql: str, values: Sequence[object] = ()) -> Rows:
        """Execute one statement, to its end: with RETURNING it is not committed before the last row was fetched.

        Outside a transaction it is one: a statement that writes takes SQLite's write lock before it reads, which is
        what BEGIN IMMEDIATE does.
        """
        try:
            return self._execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            return self._after(exc, lambda: self._execute(sql, values).fetchall())

    def changed(self, sql: str, values: Sequence[object]) -> int:
        """Execute one statement without RETURNING, which costs 2 µs; tell how many rows it wrote."""
        try:
            return self._execute(sql, values).rowcount
        except sqlite3.Error as exc:
            return self._after(exc, lambda: self._execute(sql, values).rowcount)

    def transaction(self) -> AbstractContextManager[None]:
        """All of it or nothing. Never a read that turns into a write later, which SQLite could refuse at that point."""
        return _Transaction(self, "BEGIN IMMEDIATE")

    def snapshot(self) -> AbstractContextManager[None]:
        """Several reads of the same moment."""
        return _Transaction(self, "BEGIN")

    def undo(self) -> None:
        """Undo what was begun and not ended: else this process would keep SQLite's write lock, for ever."""
        if not self._sqlite.in_transaction:
            return  # nothing was, or SQLite has done it already
        try:
            self._execute("ROLLBACK")
        except sqlite3.Error as exc:
            self.broken = True
            raise OutcomeUnknown(self._url, f"a write failed and could not be undone ({exc})") from exc

    def settle(self) -> None:
        """Remember which files we use. Called when the database has been read once, so that they are all there."""
        self._files, self._folder = self._inodes(), (0, 0)

    def adrift(self) -> bool:
        """Whether the files that we use are not those any more that others find at our path.

        That happens when somebody deletes or replaces the directory or a file in it; or when other code in this process
        opens and closes the database file, which drops our POSIX locks, so that the next process to leave believes
        that it is the last one and tidies the log away. All would give one lock to two. Each of them changes the
        directory, and to look at that costs 2 µs.
        """
        try:
            found = os.stat(self._place.directory)
        except OSError:
            return True
        folder = (found.st_ino, found.st_mtime_ns)
        if folder == self._folder:
            return False
        # Within a tick of the file system's clock a second change would not be seen.
        self._folder = folder if abs(time.time_ns() - found.st_mtime_ns) > TICK else (0, 0)
        return self._inodes() != self._files

    def _inodes(self) -> tuple[int, ...]:
        try:
            return tuple(os.stat(path).st_ino for path in self._place.files)
        except OSError:
            return (0,)

    def close(self) -> None:
        """Close it. SQLite itself sees to it that nothing is tidied away if the file is not the one at its path."""
        _open.pop(id(self), None)
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.end()
        with contextlib.suppress(sqlite3.Error):
            self._sqlite.close()

    def leave_to_parent(self, *, resting: bool) -> None:
        """In a child of a fork that nobody announced (else it is closed by then, see `Database.rest`): get rid of it.

        SQLite believes that this process has the locks that only the parent has, as long as the connection is open
        here, and would believe it of a new one. So it is closed, which frees no lock of another process. Where that
        is not safe (in the middle of a step; or before Python 3.12, where the last one to close tidies away the log
        at its path, when that is not ours) it is never touched again, and the file not opened in this process.
        """
        _open.pop(id(self), None)
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave_to_parent()
        if resting and not self._sqlite.in_transaction and (self._never_tidies or not self.adrift()):
            with contextlib.suppress(sqlite3.Error):
                self._sqlite.close()
        else:
            never_close(self._sqlite)
            _spoilt.update(self._files[:1])

    def _after(self, error: sqlite3.Error, again: Callable[[], T]) -> T:
        """Do it *again* if *error* says that it was busy."""
        if is_busy(error) and not self._sqlite.in_transaction:
            return self._in_line(again)
        raise self._failed(error) from error

    def _in_line(self, again: Callable[[], T]) -> T:
        """Somebody writes: queue, and try again while we are first. Why: `dibs.stores.sqlite.port.write_queue`."""
        gate, since = self._entrance(), self._now()
        while True:
            inside = gate is None
            try:
                inside = gate.enter(max(0.0, min(PATIENCE, self.until - self._now()))) if gate else True
                found = self._attempts(again, since, self.until if inside else 0.0)
            except BaseException:
                inside = True  # Ctrl-C may have come between getting in and knowing it
                raise
            finally:
                if inside and gate:
                    gate.leave()
            if found is not None:
                return found
            if self._now() >= self.until:
                raise StoreUnavailable(
                    self._url,
                    f"another process has been writing to it for {self._now() - since:.2g} s, which takes less than a "
                    "millisecond; it may be stopped (state T in ps), or the disk may hang",
                )

    def _attempts(self, again: Callable[[], T], since: float, until: float) -> T | None:
        """Try, once at least, until it is not busy (the answer) or time is up (None)."""
        while True:
            try:
                return again()
            except sqlite3.Error as exc:
                if not is_busy(exc):
                    raise self._failed(exc) from exc
            now = self._now()
            if now >= until:
                return None
            time.sleep(PAUSE if now - since < LONG else 20 * PAUSE)

    def _entrance(self) -> Gate | None:
        """The gate; None while the folder that it is in has not been made."""
        if self._gate is None:
            with contextlib.suppress(OSError):
                self._gate = Gate(self._place.gate)
        return self._gate

    def _refuse_company_adrift(self) -> None:
        """All connections of a process to one file share what SQLite knows of its log: one adrift spoils a new one."""
        file = os.stat(self._place.path).st_ino
        if file in _spoilt:
            raise StoreUnavailable(
                self._url,
                "this process was forked by code that does not tell Python, and a connection of its parent cannot be "
                "closed safely here; fork before the first use of the file, or with os.fork()",
            )
        company = [other for reference in list(_open.values()) if (other := reference()) is not None]
        if any(other._files[:1] == (file,) and other.adrift() for other in company):
            raise StoreUnavailable(
                self._url,
                "its log was deleted under this process, which has other clients of it that have not noticed yet; "
                "close them, and let no other code open or delete the database file",
            )

    def _failed(self, error: sqlite3.Error) -> StoreUnavailable:
        self.broken = True
        return explained(error, self._url)


def _execute_by_names(
    execute: Callable[..., sqlite3.Cursor], sql: str, values: Sequence[object] = ()
) -> sqlite3.Cursor:
    """Execute *sql* with the values of ``?1``, ``?2`` and so on under the names ``1``, ``2``."""
    return execute(sql, {str(number): value for number, value in enumerate(values, 1)} if "?1" in sql else values)


class _Forgettable(sqlite3.Connection):
    """Closes when it is dropped, with the client or the event loop that was forgotten instead of closed.

    So does its base; but since Python 3.13 that one warns of it, also at the end of the interpreter. A forked child
    that has not noticed the fork yet closes none of its parent's.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._pid, self._process = os.getpid(), os.getpid  # at the end of the interpreter `os` may be gone
        super().__init__(*args, **options)

    def __del__(self) -> None:
        if self._process() != self._pid:
            never_close(self)
            return
        try:  # noqa: SIM105 - at the end of the interpreter `contextlib` may be gone
            self.close()
        except sqlite3.ProgrammingError:
            pass  # it could not be opened


class _Transaction:
    """What is executed within happens as a whole or not at all.

    Not a generator: one that Ctrl-C left suspended undoes when it is collected, which may be in the middle of another.
    """

    __slots__ = ("_begin", "_connection")

    def __init__(self, connection: Connection, begin: str) -> None:
        self._connection, self._begin = connection, begin

    def __enter__(self) -> None:
        self._connection.rows(self._begin)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._connection.rows("COMMIT")
        finally:
            self._connection.undo()
