"""Whether there is room for the first in line beside those who hold a part of a name, and for how long it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dibs.share import Share, share_of
from dibs.stores.sqlite.row import RESERVED, Lease, ShareRow, first, shares

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

KEPT = "SELECT token, ends FROM share WHERE namespace=? AND name=? AND fence = 0"

FORGET = "DELETE FROM share WHERE namespace=? AND name=? AND fence = 0"

KEEP = """INSERT INTO share (namespace, name, token, fence, ends, since, host, pid, user, note)
    VALUES (?, ?, ?, 0, ?, 0, '', 0, '', '')"""

FRONT = "SELECT token FROM waiter WHERE namespace=? AND name=? ORDER BY ticket LIMIT 1"


def fits(held: Sequence[ShareRow], share: Share) -> bool:
    """Whether *share* is free beside what is *held*."""
    return sum(_share(each).weight for each in held) + share.weight <= share.slots


def slots(held: Sequence[ShareRow]) -> int | None:
    """Of how many slots they hold some."""
    return _share(held[0]).slots if held else None


def may_enter(held: Sequence[ShareRow], token: str) -> bool:
    """Whether it is worth it for *token* to ask; also for one that would be told that it asks for other slots."""
    share = share_of(token)
    return share is not None and (fits(held, share) or share.slots != slots(held))


def kept_until(db: Database, name: str, token: str) -> int | None:
    """Until when what is free of *name* is kept for *token*, the first in line; None if it has not been called."""
    kept = db.row(KEPT, (db.namespace, name))
    return kept[1] if kept and kept[0] == token else None


def keep(db: Database, name: str, token: str, now: int) -> int:
    """Keep what is free of *name* for *token*, who is to be called; return until when."""
    db.rows(FORGET, (db.namespace, name))
    db.rows(KEEP, (db.namespace, name, token, now + RESERVED))
    return now + RESERVED


def bell(db: Database, lease: Lease, now: int) -> str | None:
    """The bell of the first in line if there is room for it and nobody has called it. Called in a transaction."""
    waiter = first(db, lease.name)
    if waiter is None or not may_enter(shares(db, lease.name, now), waiter.token):
        return None
    if kept_until(db, lease.name, waiter.token) is not None:
        return None
    keep(db, lease.name, waiter.token, now)
    return waiter.bell


def worth_asking(db: Database, lease: Lease, token: str, now: int) -> bool:
    """Whether the first in line may enter, and is *token*, or did not come in time. It reads and never writes."""
    front = db.row(FRONT, (db.namespace, lease.name))
    if front is None or not may_enter(shares(db, lease.name, now), front[0]):
        return False
    until = kept_until(db, lease.name, front[0])
    return front[0] == token or until is None or until <= now


def _share(row: ShareRow) -> Share:
    share = share_of(row.token)
    assert share is not None, row.token
    return share
