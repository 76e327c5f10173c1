"""What the row of one name means at this moment: held, or free since when, and who is next."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from dibs.errors import StoreUnavailable
from dibs.holder import Holder
from dibs.share import shown_share

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

RESERVED = 100_000
"""µs for which a free lock is kept for the first in line. A first that was stopped costs the others no more."""

LONG_AGO = -(10**12)
FOR_EVER = 2**61

COLUMNS = "name, fence, token, ends, boot, process, since, host, pid, user, note"

TO_SEVERAL = "several"
"""In the place of a lease's token: several hold a part each, see `shares`. It ends with the last of them."""

LEASE = f"SELECT {COLUMNS} FROM lease WHERE namespace=? AND name=?"

FIRST = (
    "SELECT token, process, bell, since, host, pid, user, note FROM waiter WHERE namespace=? AND name=? ORDER BY ticket"
)

SHARES = """SELECT token, fence, ends, process, since, host, pid, user, note FROM share
    WHERE namespace=? AND name=? AND fence > 0 AND ends > ? ORDER BY fence"""

STRIKE = "DELETE FROM waiter WHERE token=?"


_TEXT, _NUMBER, _PERHAPS = (str,), (int,), (str, type(None))


class Lease(NamedTuple):
    """The last grant of a name."""

    name: str
    fence: int
    token: str | None
    ends: int
    boot: str
    process: str | None
    since: int
    host: str
    pid: int
    user: str
    note: str

    def running(self, db: Database, now: int) -> bool:
        """Whether it has neither been given back nor ended by time; its holder may be dead all the same."""
        return self.token is not None and self.ends > now and self.boot == db.boot

    def free_since(self, db: Database, now: int) -> int | None:
        """The moment from which nobody held the lock; None while somebody does."""
        if self.boot != db.boot:
            return LONG_AGO
        if not self.running(db, now):
            return min(self.ends, now)
        if self.token == TO_SEVERAL:
            return None if shares(db, self.name, now) else now
        return now if db.dead(self.process) else None

    def holder(self, now: int) -> Holder:
        """Its owner, for people."""
        left = (self.ends - now) / 1e6
        return Holder(self.name, self.fence, self.host, self.pid, self.user, self.note, self.since / 1e6, left)


class ShareRow(NamedTuple):
    """What one has of a name that several hold."""

    token: str
    fence: int
    ends: int
    process: str | None
    since: int
    host: str
    pid: int
    user: str
    note: str

    def holder(self, name: str, now: int) -> Holder:
        """Its owner, for people."""
        left, share = (self.ends - now) / 1e6, shown_share(self.token)
        return Holder(name, self.fence, self.host, self.pid, self.user, self.note, self.since / 1e6, left, share)


class Waiter(NamedTuple):
    """An ask that waits."""

    token: str
    process: str
    bell: str | None
    since: int
    host: str
    pid: int
    user: str
    note: str

    def holder(self, name: str) -> Holder:
        """Its owner, for people."""
        share = shown_share(self.token)
        return Holder(name, 0, self.host, self.pid, self.user, self.note, self.since / 1e6, None, share)


# What the columns hold if we wrote them. SQLite takes any value into any column.
_LEASE = (_TEXT, _NUMBER, _PERHAPS, _NUMBER, _TEXT, _PERHAPS, _NUMBER, _TEXT, _NUMBER, _TEXT, _TEXT)
_SHARE = (_TEXT, _NUMBER, _NUMBER, _PERHAPS, _NUMBER, _TEXT, _NUMBER, _TEXT, _TEXT)
_WAITER = (_TEXT, _TEXT, _PERHAPS, _NUMBER, _TEXT, _NUMBER, _TEXT, _TEXT)


def is_ours(row: tuple[object, ...]) -> bool:
    """Whether *row* of the table of leases can have been written by us."""
    return all(map(isinstance, row, _LEASE))


def checked(
    db: Database, table: str, name: str, row: tuple[Any, ...], kinds: tuple[tuple[type, ...], ...]
) -> tuple[Any, ...]:
    """Return *row* if we can have written it."""
    if not all(map(isinstance, row, kinds)):
        quoted = name.replace("'", "''")
        raise StoreUnavailable(
            db.url,
            f"a row of {name!r} was written by another program and means nothing; remove it with DELETE FROM {table} "
            f"WHERE name = '{quoted}': a program that holds the lock will be told that it is lost",
        )
    return row


def find(db: Database, name: str) -> Lease | None:
    """The last grant of *name*."""
    found = db.row(LEASE, (db.namespace, name))
    return Lease(*checked(db, "lease", name, found, _LEASE)) if found else None


def shares(db: Database, name: str, now: int) -> list[ShareRow]:
    """All who hold a part of *name*, whose lease is `TO_SEVERAL`, and live; in the order in which they got it."""
    found = [checked(db, "share", name, row, _SHARE) for row in db.rows(SHARES, (db.namespace, name, now))]
    return [share for share in map(ShareRow._make, found) if not db.dead(share.process)]


def held_by(db: Database, lease: Lease, now: int) -> Holder:
    """Who holds what *lease*, which runs, is about: of several, the first."""
    held = shares(db, lease.name, now) if lease.token == TO_SEVERAL else []
    return held[0].holder(lease.name, now) if held else lease.holder(now)


def waiters(db: Database, name: str) -> list[Waiter]:
    """All who wait for *name* and live, in arrival order."""
    found = [checked(db, "waiter", name, row, _WAITER) for row in db.rows(FIRST, (db.namespace, name))]
    everyone = map(Waiter._make, found)
    return [waiter for waiter in everyone if db.alive(waiter.process)]


def first(db: Database, name: str) -> Waiter | None:
    """The first who waits for *name* and lives; the dead before it are struck off. Called in a transaction."""
    while found := db.row(f"{FIRST} LIMIT 1", (db.namespace, name)):
        waiter = Waiter(*checked(db, "waiter", name, found, _WAITER))
        if db.alive(waiter.process):
            return waiter
        db.rows(STRIKE, (waiter.token,))
    return None


def micros(seconds: float) -> int:
    """*seconds* in µs, rounded up: a lease is never shorter than asked for."""
    return min(math.ceil(seconds * 1e6) + 1, FOR_EVER)
