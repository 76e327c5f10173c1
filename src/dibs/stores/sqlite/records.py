"""The records of the embedded store: what a holder left, beside the row of the lock.

Only one at a time writes to the file, so a look and a grant in one statement, or one transaction, are of one moment.
The times of records are wall-clock time, for they outlive the boot; a clock that is set ahead ends them early.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.holder import Record
from dibs.ports.db.session import Session
from dibs.stores.sqlite.grant import TAKE_IF_FREE, decide, settle, values
from dibs.stores.sqlite.lease import GIVE_BACK, RELEASE, why_not
from dibs.stores.sqlite.row import checked, find, micros
from dibs.stores.sqlite.wakeup import pass_on
from dibs.stores.store import Ask, Busy, Claim, Grant

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

SWEPT = 20
"""Records that are over and are deleted with each one that is written, at most: a few µs each."""

HOUR = 3_600_000_000
"""µs since its last grant before the row of a lock is deleted with its record: the clock has passed its fence by so
much."""

COLUMNS = "name, fence, data, at, ends"

_RECORD = ((str,), (int,), (bytes,), (int,), (int,))

FIND = f"SELECT {COLUMNS} FROM record WHERE namespace=?1 AND name=?2 AND ends > ?3"

# The prefix is compared as bytes: LIKE and GLOB give a meaning to some characters, and substr stops at a NUL.
LIST = f"""SELECT {COLUMNS} FROM record WHERE namespace=?1 AND name >= ?2 AND ends > ?3
    AND instr(CAST(name AS BLOB), CAST(?2 AS BLOB)) = 1 ORDER BY at DESC, fence DESC LIMIT ?4"""

# ?8 is the wall clock, from `values`.
TAKE_UNLESS_RECORDED = f"""{TAKE_IF_FREE} AND NOT EXISTS (SELECT 1 FROM record
    WHERE record.namespace = ?1 AND record.name = ?2 AND record.fence > ?14 AND record.ends > ?8)"""

WRITE = """INSERT INTO record (namespace, name, fence, token, data, at, ends) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT (namespace, name) DO UPDATE SET fence=?3, token=?4, data=?5, at=?6, ends=?7"""

WRITTEN = "SELECT 1 FROM record WHERE namespace=? AND name=? AND fence=? AND token=? AND data=?"

# The same in a transaction of the caller's, on its own connection: the first statement takes SQLite's write lock.
WRITE_ON = """INSERT INTO record (namespace, name, fence, token, data, at, ends)
    SELECT namespace, name, fence, token, :data, :at, :until FROM lease WHERE namespace = :namespace AND name = :name
        AND token = :token AND fence = :fence AND ends > :now AND boot = :boot
    ON CONFLICT (namespace, name) DO UPDATE SET fence = excluded.fence, token = excluded.token, data = excluded.data,
        at = excluded.at, ends = excluded.ends
    RETURNING 1"""

RELEASE_ON = "UPDATE lease SET token = NULL, ends = :now WHERE namespace = :namespace AND name = :name RETURNING 1"

WRITTEN_ON = """SELECT 1 FROM record WHERE namespace = :namespace AND name = :name AND fence = :fence AND token = :token
    AND data = :data"""

FORGET = "DELETE FROM record WHERE namespace=? AND name=? AND fence=? AND ends > ?"

OVER = f"SELECT namespace, name FROM record WHERE ends <= ? ORDER BY ends LIMIT {SWEPT}"

DROP = "DELETE FROM record WHERE namespace=? AND name=? AND ends <= ?"

DROP_LEASE = """DELETE FROM lease WHERE namespace=?1 AND name=?2 AND fence < ?3 AND (token IS NULL OR ends <= ?4
    OR boot <> ?5) AND NOT EXISTS (SELECT 1 FROM waiter WHERE waiter.namespace=?1 AND waiter.name=?2)"""


def grant_unless_recorded(db: Database, ask: Ask, after: int) -> Grant | Busy | Record:
    """Give the lock to *ask*, or answer with the record if it is of a grant after the fence *after*."""
    if (found := record(db, ask.name)) is not None and found.fence > after:
        return found  # only a look: a repeated call waits for nobody who writes
    if ask.token not in db.bells:
        now = db.moment()
        row = (*values(db, ask, now), now, after)
        if db.changed(TAKE_UNLESS_RECORDED, row):
            db.held.add(ask.token)
            return Grant(row[2], ask.ttl)
    db.be_seen()
    with db.transaction():
        found = record(db, ask.name)
        if found is not None and found.fence > after:
            return found
        answer, bell = decide(db, ask)
    return settle(db, ask, answer, bell)


def remember(db: Database, claim: Claim, data: bytes, keep: float) -> LossReason | None:
    """Write the record if *claim* holds."""
    with _durable(db), db.transaction():
        return _write(db, claim, data, keep)


def finish(db: Database, claim: Claim, data: bytes, keep: float) -> LossReason | None:
    """Write the record if *claim* holds, and give the lock back."""
    bell = None
    with _durable(db), db.transaction():
        reason = _write(db, claim, data, keep)
        if reason is None:
            row = (db.namespace, claim.name, claim.token, db.moment(), db.boot)
            if not db.changed(GIVE_BACK, row):
                _, bell = db.row(RELEASE, row) or (False, None)
    db.bells.take_back(claim.token)
    db.held.discard(claim.token)
    pass_on(db, claim.name, bell)
    if reason is None:
        with suppress(StoreUnavailable):  # the record is there; this is for the disk space of others
            sweep(db)
    return reason


async def finish_on(db: Database, conn: Session, claim: Claim, data: bytes, keep: float) -> LossReason | None:
    """Write the record, and give the lock back, when the transaction that *conn* is in is committed."""
    await _check_same_file(db, conn)
    mine = {"namespace": db.namespace, "name": claim.name, "token": claim.token, "fence": claim.fence, "data": data}
    now, at = db.moment(), db.wall_clock()
    if await conn.rows(WRITE_ON, **mine, at=at, until=at + micros(keep), now=now, boot=db.boot):
        await conn.rows(RELEASE_ON, namespace=db.namespace, name=claim.name, now=now)
        return None
    return None if await conn.rows(WRITTEN_ON, **mine) else LossReason.TAKEN


async def _check_same_file(db: Database, conn: Session) -> None:
    """Refuse another file, also one that ours is attached to: in WAL mode SQLite commits two files one by one."""
    if conn.product != "sqlite":
        raise Misuse(f"the store is in SQLite, and the connection is one of {conn.product}: they share no commit")
    [(path,)] = await conn.rows("SELECT file FROM pragma_database_list WHERE name = 'main'")
    if not db.place.is_at(path):
        raise Misuse(
            f"the connection is to {path or 'a database in memory'}, and the store is {db.url}: what is committed in "
            "one is not committed in the other; keep the data in the file of the store"
        )


def record(db: Database, name: str) -> Record | None:
    """The record of *name*."""
    now = db.wall_clock()
    found = db.row(FIND, (db.namespace, name, now))
    return _shown(checked(db, "record", name, found, _RECORD), now) if found else None


def records(db: Database, prefix: str, most: int) -> list[Record]:
    """The latest records of names that begin with *prefix*."""
    now = db.wall_clock()
    found = db.rows(LIST, (db.namespace, prefix, now, most))
    return [_shown(row, now) for row in found if all(map(isinstance, row, _RECORD))]


def forget(db: Database, name: str, fence: int) -> bool:
    """Remove the record of the grant *fence*."""
    return bool(db.changed(FORGET, (db.namespace, name, fence, db.wall_clock())))


def sweep(db: Database) -> None:
    """Delete some records that are over, and the locks that nobody has used since."""
    over = db.rows(OVER, (db.wall_clock(),))
    if not over:
        return
    with db.transaction():
        now = db.wall_clock()
        for name in over:
            if db.changed(DROP, (*name, now)):
                db.changed(DROP_LEASE, (*name, now - HOUR, db.moment(), db.boot))


def _write(db: Database, claim: Claim, data: bytes, keep: float) -> LossReason | None:
    """Write it if *claim* holds, or is known to have written it. Called in a transaction."""
    lease = find(db, claim.name)
    mine = (db.namespace, claim.name, claim.fence, claim.token)
    if lease and lease.running(db, db.moment()) and (lease.fence, lease.token) == (claim.fence, claim.token):
        now = db.wall_clock()
        db.rows(WRITE, (*mine, data, now, now + micros(keep)))
        return None
    if db.row(WRITTEN, (*mine, data)):  # its answer was lost, and it asks again
        return None
    return why_not(db, claim.name, claim.token)


class _durable:  # noqa: N801 - it reads as a word
    """Until the end of the block what is committed is on the disk before the commit returns.

    A grant does not need that, because a power cut kills its holder too. A record is there to outlive its writer.
    """

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.rows("PRAGMA synchronous=FULL")

    def __exit__(self, *_: object) -> None:
        with suppress(StoreUnavailable):
            self._db.rows("PRAGMA synchronous=NORMAL")


def _shown(row: tuple[str, int, bytes, int, int], now: int) -> Record:
    name, fence, data, at, ends = row
    return Record(name, fence, data, at / 1e6, (ends - now) / 1e6)
