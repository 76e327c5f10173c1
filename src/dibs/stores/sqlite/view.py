"""What the embedded store shows to people: who holds, who waits, and who was evicted."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from dibs.errors import StoreUnavailable
from dibs.holder import Eviction, Holder, LockState
from dibs.stores.sqlite.row import COLUMNS, TO_SEVERAL, Lease, find, is_ours, shares, waiters

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

# In the order of the primary key, which is that of code points. The end of the range is found by the reader: LIKE
# and GLOB give a meaning to some characters, and LIKE does not know upper case from lower.
HELD = f"""SELECT {COLUMNS} FROM lease WHERE namespace=? AND name >= ? AND token IS NOT NULL AND ends > ? AND boot=?
    ORDER BY name"""

EVICTED = """SELECT evicted_fence, evicted_reason, evicted_by, evicted_at / 1e6 FROM lease
    WHERE namespace=? AND name=? AND evicted_fence IS NOT NULL"""

FOREIGN = "not a lock of dibs: another program wrote this row; `dibs show` says how to remove it"


def holders(db: Database, prefix: str) -> list[Holder]:
    """All who hold a name that begins with *prefix*."""
    now = db.moment()
    found = db.rows(HELD, (db.namespace, prefix, now, db.boot))
    rows = takewhile(lambda row: isinstance(row[0], str) and row[0].startswith(prefix), found)
    return [holder for row in rows for holder in _shown(db, row, now)]


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


def _shown(db: Database, row: tuple[Any, ...], now: int) -> list[Holder]:
    """The holder that *row* tells of; a row that another program wrote does not hide the others."""
    if is_ours(row):
        with suppress(StoreUnavailable):
            return _holding(db, Lease(*row), now)
    return [Holder(row[0], 0, "unknown", 0, "unknown", FOREIGN, db.wall_clock() / 1e6, None)]


def _holding(db: Database, lease: Lease, now: int) -> list[Holder]:
    """Who holds what *lease*, which runs, is about, if they live."""
    if lease.token == TO_SEVERAL:
        return [share.holder(lease.name, now) for share in shares(db, lease.name, now)]
    return [] if db.dead(lease.process) else [lease.holder(now)]
