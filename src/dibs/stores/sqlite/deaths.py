"""Notes in the database that clients have ended, before the files are deleted that prove it.

A file that is missing proves nothing, so a row must not go on naming a client whose file we have deleted: its lease
would count as held until its ttl is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.stores.sqlite.row import STRIKE
from dibs.stores.sqlite.shares import SETTLE

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

LEASES = """SELECT process, namespace, name FROM lease
    WHERE token IS NOT NULL AND process IS NOT NULL AND ends > ? AND boot = ?"""

SHARES = "SELECT process, namespace, name FROM share WHERE fence > 0 AND process IS NOT NULL AND ends > ?"

TICKETS = "SELECT process, token FROM waiter"

END = "UPDATE lease SET ends = min(ends, ?4) WHERE process = ?1 AND namespace = ?2 AND name = ?3"

END_SHARE = "UPDATE share SET ends = min(ends, ?4) WHERE process = ?1 AND namespace = ?2 AND name = ?3"


def bury(db: Database, dead: set[str]) -> None:
    """End what the clients in *dead* hold and wait for. First a look without the write lock: it reads all names."""
    now = db.moment()
    leases = [row for row in db.rows(LEASES, (now, db.boot)) if row[0] in dead]
    shares = [row for row in db.rows(SHARES, (now,)) if row[0] in dead]
    tickets = [row for row in db.rows(TICKETS) if row[0] in dead]
    if not (leases or shares or tickets):
        return
    with db.transaction():
        for row in leases:
            db.rows(END, (*row, now))
        for process, namespace, name in shares:
            db.rows(END_SHARE, (process, namespace, name, now))
            db.rows(SETTLE, (namespace, name, now))
        for _, token in tickets:
            db.rows(STRIKE, (token,))
