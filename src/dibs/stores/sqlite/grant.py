"""How the embedded store gives out a lock: in one statement if it is free and nobody waits, else by the queue."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.errors import StoreUnavailable
from dibs.stores.sqlite.row import RESERVED, STRIKE, Waiter, find, first, held_by, micros
from dibs.stores.sqlite.wakeup import pass_on
from dibs.stores.store import Ask, Busy, Grant

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

LAST_FENCE = 2**53 - 1
"""Above this a fence would not be exact in JSON and Lua any more."""

_TAKE = """INSERT INTO lease (namespace, name, fence, token, ends, boot, process, since, host, pid, user, note)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
    ON CONFLICT (namespace, name) DO UPDATE SET token = ?4, ends = ?5, boot = ?6, process = ?7, since = ?8, host = ?9,
        pid = ?10, user = ?11, note = ?12, fence"""

# The fence is a hybrid clock: the wall clock moves it past everything that was given out before the file was lost,
# the row moves it past everything that was given out before the wall clock was set back.
TAKE = f"{_TAKE} = max(fence + 1, ?3) WHERE fence < {LAST_FENCE} RETURNING fence"

# In the normal case all is as it should be: nobody holds, nobody waits, and the clock is ahead of the last fence.
TAKE_IF_FREE = f"""{_TAKE} = ?3 WHERE fence < ?3 AND (token IS NULL OR ends <= ?13 OR boot <> ?6)
    AND NOT EXISTS (SELECT 1 FROM waiter WHERE waiter.namespace = ?1 AND waiter.name = ?2)"""

LENGTHEN = "UPDATE lease SET ends = max(ends, ?) WHERE namespace=? AND name=?"

DECLARE_FREE = "UPDATE lease SET ends = ? WHERE namespace=? AND name=?"

QUEUE = """INSERT OR IGNORE INTO waiter (namespace, name, token, process, bell, since, host, pid, user, note)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""


def grant(db: Database, ask: Ask) -> Grant | Busy:
    """Give the lock to *ask* if it may have it now."""
    if ask.token not in db.bells:  # else it waits, and goes by the queue
        now = db.moment()
        row = (*values(db, ask, now), now)
        if db.changed(TAKE_IF_FREE, row):
            db.held.add(ask.token)
            return Grant(row[2], ask.ttl)
    db.be_seen()
    with db.transaction():
        answer, bell = decide(db, ask)
    return settle(db, ask, answer, bell)


def settle(db: Database, ask: Ask, answer: Grant | Busy, bell: str | None) -> Grant | Busy:
    """What `decide` said is committed: wake whom it named."""
    if isinstance(answer, Grant):
        db.held.add(ask.token)
        db.bells.take_back(ask.token)
    pass_on(db, ask.name, bell)
    return answer


def decide(db: Database, ask: Ask) -> tuple[Grant | Busy, str | None]:
    """The answer, and the bell to ring when it is committed. Called in a transaction."""
    lease, now = find(db, ask.name), db.moment()
    if lease is None:
        return _give(db, ask, None, now), None
    if lease.token == ask.token and lease.running(db, now):  # its answer was lost: the same grant, from now on
        db.rows(LENGTHEN, (now + micros(ask.ttl), db.namespace, ask.name))
        return Grant(lease.fence, ask.ttl), None
    free_since = lease.free_since(db, now)
    if free_since is None:
        queue(db, ask)
        return Busy(held_by(db, lease, now), (lease.ends - now) / 1e6), None
    next_in_line = first(db, ask.name)
    left = free_since + RESERVED - now
    if next_in_line is None or next_in_line.token == ask.token or left <= 0:
        return _give(db, ask, next_in_line, now), None
    queue(db, ask)
    bell = None
    if lease.running(db, now):  # its holder is dead, and we are the one who found out
        db.rows(DECLARE_FREE, (now, db.namespace, ask.name))
        bell = next_in_line.bell
    return Busy(next_in_line.holder(ask.name), left / 1e6), bell


def _give(db: Database, ask: Ask, next_in_line: Waiter | None, now: int) -> Grant:
    """Grant, and strike off the ticket, and that of a first in line who did not come in time."""
    taken = db.rows(TAKE, values(db, ask, now))
    if not taken:
        raise exhausted(db, ask.name)
    for token in {ask.token, next_in_line.token if next_in_line else ask.token}:
        db.rows(STRIKE, (token,))
    return Grant(taken[0][0], ask.ttl)


def take(db: Database, ask: Ask, token: str, ends: int, process: str | None) -> int | None:
    """Write the lease of *ask* with another token and end than its own; return the fence, None if there is none."""
    space, name, fence, _, _, boot, _, *who = values(db, ask, 0)
    taken = db.row(TAKE, (space, name, fence, token, ends, boot, process, *who))
    return taken[0] if taken else None


def exhausted(db: Database, name: str) -> StoreUnavailable:
    """The refusal of a fence that would be too high."""
    return StoreUnavailable(
        db.url,
        f"the fence of {name!r} has reached its last number, {LAST_FENCE}; this takes 285 years or a clock that was "
        "set far ahead: use another name",
    )


def queue(db: Database, ask: Ask) -> None:
    """Take a ticket, once."""
    if ask.queue:
        bell, since = db.bells.give(ask.token), db.wall_clock()
        who = (db.host, db.pid, db.user, ask.note)
        db.rows(QUEUE, (db.namespace, ask.name, ask.token, db.process, bell, since, *who))


def values(db: Database, ask: Ask, now: int) -> tuple[Any, ...]:
    """What is written into the row, in the order of the statements."""
    since = db.wall_clock()
    lease = (min(since, LAST_FENCE), ask.token, now + micros(ask.ttl), db.boot, db.process, since)
    return (db.namespace, ask.name, *lease, db.host, db.pid, db.user, ask.note)
