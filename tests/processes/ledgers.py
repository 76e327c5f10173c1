"""What the locks protect: a plain file, and a table that checks the fence, at the write only or at the read as well."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol


class Ledger(Protocol):
    """One number that is read, and written a little later."""

    def __init__(self, folder: Path) -> None: ...

    def create(self) -> None:
        """Begin with 0."""

    def read(self, fence: int) -> int | None:
        """The number; None if the fence is refused already."""

    def write(self, value: int, fence: int) -> bool:
        """Write it; tell whether it was written."""


class PlainFile:
    """Everybody may write."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "number"

    def create(self) -> None:
        self._path.write_text("0", encoding="ascii")

    def read(self, fence: int) -> int:
        return int(self._path.read_text(encoding="ascii"))

    def write(self, value: int, fence: int) -> bool:
        self._path.write_text(str(value), encoding="ascii")
        return True


class CheckedTable:
    """Refuses a write whose fence is older than the newest that has written: the statement of docs/guarantees.md."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.db"

    def create(self) -> None:
        with self._connected() as db, db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER, fence INTEGER)")
            db.execute("INSERT INTO account VALUES ('42', 0, 0)")

    def _connected(self) -> closing[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, timeout=30))

    def read(self, fence: int) -> int | None:
        with self._connected() as db:
            found = db.execute("SELECT balance FROM account WHERE id = '42'").fetchone()
        return int(found[0])

    def write(self, value: int, fence: int) -> bool:
        with self._connected() as db, db:
            done = db.execute(
                "UPDATE account SET balance = ?, fence = ? WHERE id = '42' AND fence <= ?", (value, fence, fence)
            )
            return done.rowcount == 1


class ClaimedTable(CheckedTable):
    """Is shown the fence before anything is read, so that from then on nothing older can be written."""

    def read(self, fence: int) -> int | None:
        with self._connected() as db, db:
            found = db.execute(
                "UPDATE account SET fence = ? WHERE id = '42' AND fence <= ? RETURNING balance", (fence, fence)
            ).fetchall()
        return int(found[0][0]) if found else None


LEDGERS: dict[str, type[Ledger]] = {each.__name__: each for each in (PlainFile, CheckedTable, ClaimedTable)}
