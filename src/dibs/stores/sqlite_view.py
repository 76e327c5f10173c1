"""What the embedded store shows to people: who holds, who waits, and who was evicted."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from dibs.holder import Eviction, Holder, LockState
from dibs.stores.sqlite_row import COLUMNS, TO_SEVERAL, Lease, find, shares, waiters

if TYPE_CHECKING:
    from dibs.ports.sqlite_database import Database

# In the order of the primary key, which is that of code points. The end of the range is found by the reader: LIKE
# and GLOB give a meaning to some characters, and LIKE does not know upper case from lower.
HELD = f"""SELECT {COLUMNS} FROM lease WHERE namespace=? AND name >= ? AND token IS NOT NULL AND ends > ? AND boot=?
    ORDER BY name"""

EVICTED = """SELECT evicted_fence, evicted_reason, evicted_by, evicted_at / 1e6 FROM lease
    WHERE namespace=? AND name=? AND evicted_fence IS NOT NULL"""


def holders(db: Database, prefix: str) -> list[Holder]:
    """All who hold a name that begins with *prefix*."""
    now = db.moment()
    found = map(Lease._make, db.rows(HELD, (db.namespace, prefix, now, db.boot)))
    leases = takewhile(lambda lease: lease.name.startswith(prefix), found)
    return [holder for lease in leases for holder in _holding(db, lease, now)]


def show(db: Database, name: str) -> LockState:
    """All that is known of *name*, as of one moment."""
    with db.snapshot():
        lease, now, evicted = find(db, name), db.moment(), db.row(EVICTED, (db.namespace, name))
        waiting = tuple(waiter.holder(name) for waiter in waiters(db, name))
        held = _holding(db, lease, now) if lease and lease.running(db, now) else []
    return LockState(
        name,
        lease.fence if lease else 0,
        held[0] if held else None,
        waiting,
        Eviction(*evicted) if evicted else None,
        sharing=tuple(held) if lease and lease.token == TO_SEVERAL else (),
    )


def _holding(db: Database, lease: Lease, now: int) -> list[Holder]:
    """Who holds what *lease*, which runs, is about, if they live."""
    if lease.token == TO_SEVERAL:
        return [share.holder(lease.name, now) for share in shares(db, lease.name, now)]
    return [lease.holder(now)] if db.alive(lease.process) else []
