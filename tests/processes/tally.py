"""A number in a table that checks the fence, and remembers who wrote what in which order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from dibs.testing.history import Write


class Tally:
    """The guarded resource. What it takes and what it refuses, it writes down in the same transaction."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "tally.db"

    def create(self) -> None:
        """Make the tables."""
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE tally (value INTEGER, fence INTEGER)")
            db.execute("INSERT INTO tally VALUES (0, 0)")
            db.execute("CREATE TABLE act (number INTEGER PRIMARY KEY, act TEXT, fence INTEGER, accepted INTEGER)")

    def read(self, fence: int) -> int | None:
        """The number, with the fence shown; None if it is refused already."""
        with self._transaction() as db:
            found = db.execute("UPDATE tally SET fence = ? WHERE fence <= ? RETURNING value", (fence, fence)).fetchall()
            self._note(db, None, fence, bool(found))
        return int(found[0][0]) if found else None

    def write(self, value: int, fence: int, act: str) -> bool:
        """Write it; tell whether it was written."""
        with self._transaction() as db:
            done = db.execute("UPDATE tally SET value = ?, fence = ? WHERE fence <= ?", (value, fence, fence)).rowcount
            self._note(db, act, fence, done == 1)
        return done == 1

    def value(self) -> int:
        """The number, for the test."""
        return int(self._rows("SELECT value FROM tally")[0][0])

    def accepted(self) -> dict[str, int]:
        """The fences of the acts that were written, in order."""
        return dict(self._rows("SELECT act, fence FROM act WHERE accepted AND act IS NOT NULL ORDER BY number"))

    def shown(self) -> list[Write]:
        """The fences that came, at reads and at writes, in order; and which of them were accepted."""
        return [Write(*row) for row in self._rows("SELECT fence, accepted FROM act ORDER BY number")]

    @staticmethod
    def _note(db: sqlite3.Connection, act: str | None, fence: int, accepted: bool) -> None:
        db.execute("INSERT INTO act (act, fence, accepted) VALUES (?, ?, ?)", (act, fence, accepted))

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._path)) as db:
            return db.execute(sql).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Patient: whoever is stopped in the middle of its own holds up the others."""
        with closing(sqlite3.connect(self._path, timeout=60)) as db, db:
            db.execute("BEGIN IMMEDIATE")
            yield db
