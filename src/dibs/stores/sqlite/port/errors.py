"""Says in a sentence what SQLite's error codes mean for a user, and what to do about them."""

from __future__ import annotations

import sqlite3

from dibs.errors import StoreUnavailable

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL})
"""Another process is in the middle of something: a write, a recovery, its last close."""

_SENTENCES = {
    sqlite3.SQLITE_FULL: "there is no space left on its disk; make room",
    sqlite3.SQLITE_READONLY: "it may only be read; check the permissions, the owner and how the disk is mounted",
    sqlite3.SQLITE_PERM: "access is denied; check the permissions and the owner",
    sqlite3.SQLITE_AUTH: "access is denied; check the permissions and the owner",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that the directory is there, ours, and not on a read-only "
    "disk, and that this process may open more files",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write, or one of its files was deleted while "
    "programs used it. After a deletion it works again once all of them have used it once more, or ended; otherwise "
    "check the disk and the system's log",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; stop the programs that use it, and move it away with its -wal and "
    "-shm: a new one is made at the next use, and its fences are higher because they follow the clock",
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database; choose another path for the locks. If it "
    "was one, somebody has overwritten it: stop the programs that use it, and move it away with its -wal and -shm",
}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether it is worth to try the same again soon."""
    return _code(error) & 0xFF in BUSY


def explained(error: sqlite3.Error, store: str) -> StoreUnavailable:
    """Our error for one of SQLite's that says that nothing happened."""
    sentence = _SENTENCES.get(_code(error) & 0xFF, "SQLite refused the request")
    if "no such table" in str(error):
        sentence = "somebody has removed its tables, and with them all locks; the next use makes new ones"
    return StoreUnavailable(store, f"{sentence} ({error})")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0)  # errors of the Python module itself have none
