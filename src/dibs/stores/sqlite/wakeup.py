"""Wakes the next in line after a lock became free, and tells a waiter when it is worth asking again."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dibs.errors import StoreUnavailable
from dibs.stores.sqlite import capacity as sqlite_room
from dibs.stores.sqlite.row import RESERVED, TO_SEVERAL, find, first
from dibs.stores.store import Ask

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

FIRST_LOOK = 0.025
"""Seconds between two looks of the first in line: a bell wakes it sooner, unless the holder was killed."""

LONGEST_LOOK = 0.1
"""Seconds between two looks of those far behind: they only matter if all before them were killed or stopped."""

STEP = 0.005
"""Seconds by which each place in line looks later, so that those at the front act first and alone."""

FAR = 32
"""Places behind which it does not matter how far behind."""

PLACE = f"""SELECT ticket, (SELECT count(*) FROM (SELECT 1 FROM waiter AS other WHERE other.namespace = waiter.namespace
    AND other.name = waiter.name AND other.ticket < waiter.ticket LIMIT {FAR})) FROM waiter WHERE token=?"""

CROWD = f"SELECT count(*) FROM (SELECT 1 FROM waiter WHERE namespace=? AND name=? LIMIT {FAR})"

STRIKE_DEAF = "DELETE FROM waiter WHERE bell=?"


def pass_on(db: Database, name: str, bell: str | None) -> None:
    """Ring *bell*; while nobody is there to hear it, strike its owner off and ring the next.

    What freed the lock is committed. So nothing here may fail that step: a waiter who is not woken looks for itself.
    """
    with contextlib.suppress(StoreUnavailable):
        while bell is not None and not db.bells.ring(bell):
            with db.transaction():
                db.rows(STRIKE_DEAF, (bell,))
                bell = next_bell(db, name)


def next_bell(db: Database, name: str) -> str | None:
    """The bell of the first in line if the lock is free. Called in a transaction."""
    lease, now = find(db, name), db.moment()
    if lease is None:
        return None
    if lease.free_since(db, now) is None:
        return sqlite_room.bell(db, lease, now) if lease.token == TO_SEVERAL else None
    waiter = first(db, name)
    return waiter.bell if waiter else None


def next_look(db: Database, ask: Ask) -> float:
    """Seconds after which to look again; 0 if it is worth asking now. It reads and never writes."""
    lease, now = find(db, ask.name), db.moment()
    ahead = _ahead(db, ask)
    if lease is None or lease.token == ask.token or ahead is None:
        return 0.0
    free_since = lease.free_since(db, now)
    if free_since is None and lease.token == TO_SEVERAL and sqlite_room.worth_asking(db, lease, ask.token, now):
        return 0.0
    if free_since is None:
        ends = (lease.ends - now) / 1e6 + STEP * ahead
        return min(FIRST_LOOK + STEP * ahead, LONGEST_LOOK, ends)
    if ahead == 0 or lease.running(db, now):  # we are next, or its holder is dead and nobody has said so yet
        return 0.0
    left = (free_since + RESERVED - now) / 1e6
    return max(0.0, left + STEP * (ahead - 1)) if left > 0 else 0.0


def _ahead(db: Database, ask: Ask) -> int | None:
    """How many wait before *ask*; None if its ticket is gone because it did not come when it was its turn."""
    if not ask.queue:
        crowd: int = db.rows(CROWD, (db.namespace, ask.name))[0][0]
        return crowd
    found = db.row(PLACE, (ask.token,))
    return found[1] if found else None
