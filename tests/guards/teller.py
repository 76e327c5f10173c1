"""A process that adds to a number, again and again, under a lock: it reads, lets others run, and writes.

It leaves a file while it stands between its read and its write, and says at the end how many writes were accepted.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

import dibs
from dibs.guards import TableGuard

NAME = "account:42"
TTL = 0.3

ENDED = (dibs.LeaseLost, dibs.StoreUnavailable)
"""What ends a round: the latter also comes to whoever finds a busy machine's server not answering in time."""


class Teller:
    """One who adds, with a guard or without."""

    def __init__(self, client: dibs.Client, folder: Path, data: str) -> None:
        self._lock, self._folder, self._conn = client.lock(NAME, ttl=TTL), folder, connected(data)
        self._guard = TableGuard()
        self.accepted = self.refused = 0

    def close(self) -> None:
        """Close the connection to the data."""
        self._conn.close()

    def add(self) -> None:
        """Under the lock alone: the pause between the read and the write may be a long one."""
        with suppress(*ENDED), self._lock:
            seen = self._read()
            self._wait()
            self._write(seen + 1)
            self.accepted += 1

    def add_guarded(self) -> None:
        """The guard knows of the grant before the read, and looks again in the transaction of the write."""
        try:
            with suppress(*ENDED), self._lock.guarded(self._guard.on(self._conn)) as lease:
                seen = self._read()
                self._wait()
                with self._transaction():
                    self._guard.claim(self._conn, NAME, lease.fence)
                    self._write(seen + 1)
                self.accepted += 1
        except dibs.StaleFence:
            self.refused += 1

    def _read(self) -> int:
        return int(self._conn.execute("SELECT balance FROM account").fetchone()[0])

    def _write(self, balance: int) -> None:
        self._conn.execute(f"UPDATE account SET balance = {balance}")

    def _wait(self) -> None:
        sign = self._folder / str(os.getpid())
        sign.touch()
        time.sleep(0.02)  # what makes it lose updates if two are here
        sign.unlink()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._conn.execute("BEGIN IMMEDIATE" if isinstance(self._conn, sqlite3.Connection) else "BEGIN")
        try:
            yield
        except BaseException:
            self._conn.execute("ROLLBACK")
            raise
        self._conn.execute("COMMIT")


def connected(data: str) -> Any:
    """A connection to a file of SQLite or to PostgreSQL, in no transaction."""
    if data.startswith("postgresql:"):
        return psycopg.connect(data, autocommit=True)
    return sqlite3.connect(data, isolation_level=None, timeout=30)


def main() -> None:
    """Add until there is a file called enough."""
    url, folder, data, how = sys.argv[1:]
    with dibs.connect(url) as client:
        teller = Teller(client, Path(folder), data)
        while not (Path(folder) / "enough").exists():
            getattr(teller, how)()
        teller.close()
    print(json.dumps([teller.accepted, teller.refused]))


if __name__ == "__main__":
    main()
