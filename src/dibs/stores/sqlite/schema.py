"""The tables of the embedded store, and how to tell our file from another program's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.errors import Misuse, StoreUnavailable

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

APPLICATION = 0x64696273  # "dibs"
VERSION = 1

OURS = """SELECT count(*) FROM sqlite_schema
    WHERE name IN ('lease', 'waiter', 'waiter_order', 'share', 'record', 'record_ends')"""

# One statement, so that it sees one moment: somebody else may be making the tables just now.
IDENTITY = """SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)
    FROM pragma_application_id, pragma_user_version"""

TABLES = (
    # One row for each name that was ever locked. It is never deleted: the fence outlives release and eviction.
    """CREATE TABLE IF NOT EXISTS lease (
        namespace TEXT NOT NULL, name TEXT NOT NULL,
        fence INTEGER NOT NULL,
        token TEXT,               -- of the last grant; NULL when it was given back or broken
        ends INTEGER NOT NULL,    -- when it ends, or ended: µs on the boot clock
        boot TEXT NOT NULL,       -- of which boot; in another one the lease is over
        process TEXT,             -- the liveness file of the holder; NULL if only the ttl bounds the lease
        since INTEGER NOT NULL,   -- unix time in µs, for people
        host TEXT NOT NULL, pid INTEGER NOT NULL, user TEXT NOT NULL, note TEXT NOT NULL,
        evicted_token TEXT, evicted_fence INTEGER, evicted_reason TEXT, evicted_by TEXT, evicted_at INTEGER,
        PRIMARY KEY (namespace, name)
    ) WITHOUT ROWID""",
    # One row for each ask that waits; AUTOINCREMENT, so that a ticket number is never given twice.
    """CREATE TABLE IF NOT EXISTS waiter (
        ticket INTEGER PRIMARY KEY AUTOINCREMENT,
        namespace TEXT NOT NULL, name TEXT NOT NULL,
        token TEXT NOT NULL UNIQUE,
        process TEXT NOT NULL,
        bell TEXT,                -- NULL if it has to look for itself
        since INTEGER NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, user TEXT NOT NULL, note TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS waiter_order ON waiter (namespace, name, ticket)",
    """CREATE TABLE IF NOT EXISTS share (
        -- One row for each who holds a part of a name, while the lease of the name is held by several; and one, with
        -- fence 0, for the first in line: what is free is kept for it until it ends.
        namespace TEXT NOT NULL, name TEXT NOT NULL,
        token TEXT NOT NULL,
        fence INTEGER NOT NULL,
        ends INTEGER NOT NULL,
        process TEXT,
        since INTEGER NOT NULL,
        host TEXT NOT NULL, pid INTEGER NOT NULL, user TEXT NOT NULL, note TEXT NOT NULL,
        PRIMARY KEY (namespace, name, token)
    ) WITHOUT ROWID""",
    # One row for each name whose holder left a record.
    """CREATE TABLE IF NOT EXISTS record (
        namespace TEXT NOT NULL, name TEXT NOT NULL,
        fence INTEGER NOT NULL, token TEXT NOT NULL,   -- of the grant under which it was written
        data BLOB NOT NULL,
        at INTEGER NOT NULL, ends INTEGER NOT NULL,    -- unix time in µs: a record outlives the boot
        PRIMARY KEY (namespace, name)
    )""",
    "CREATE INDEX IF NOT EXISTS record_ends ON record (ends)",
)

SETTINGS = (
    # Small pages, set before the file has any: every write puts whole pages into the log. 17 % faster than 4096.
    "PRAGMA page_size=1024",
    "PRAGMA journal_mode=WAL",
    # No fsync for each commit. A power cut may undo the last writes, and it kills all holders too; the fence follows
    # the clock, so it rises even so.
    "PRAGMA synchronous=NORMAL",
)


def prepare(db: Database) -> None:
    """Make the tables that are missing; refuse, without a trace, a file that is not ours."""
    _is_empty(db)
    for setting in SETTINGS:
        found = db.row(setting)
        if found in {("delete",), ("memory",)}:
            raise StoreUnavailable(db.url, "its file system does not support SQLite's write-ahead log; choose another")
    if db.rows(OURS) != [(len(TABLES),)]:  # it is empty, or made by an older version, or somebody dropped some
        with db.transaction():
            if _is_empty(db):  # nobody was faster
                db.rows(f"PRAGMA application_id={APPLICATION}")
                db.rows(f"PRAGMA user_version={VERSION}")
            for table in TABLES:
                db.rows(table)
    _is_empty(db)


def _is_empty(db: Database) -> bool:
    """Whether nothing is in the file yet. If something is, it has to be ours, and of a version that we know."""
    application, version, tables = db.rows(IDENTITY)[0]
    if application == APPLICATION:
        if version > VERSION:
            raise Misuse(
                f"{db.url} was made by a newer dibs (its version is {version}, this one knows {VERSION}): "
                "update dibs here, or choose another path"
            )
        return False
    if application or version or tables:
        raise Misuse(f"{db.url} is the database of another program; nothing was changed; choose another path")
    return True
