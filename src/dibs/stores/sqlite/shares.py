"""How several hold a name of the embedded store at once: each has a row of its own, with its own end and process.

The lease of the name says meanwhile that it is `TO_SEVERAL`, and ends with the last of them. So whoever wants all of
it sees a lease that runs, in the same statement as ever, and only whoever wants a part looks at the rows.
"""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.errors import LossReason
from dibs.share import Share, other_slots
from dibs.stores.sqlite import capacity as room
from dibs.stores.sqlite.grant import DECLARE_FREE, LENGTHEN, exhausted, queue, settle, take
from dibs.stores.sqlite.row import RESERVED, STRIKE, TO_SEVERAL, Lease, ShareRow, find, first, micros, shares
from dibs.stores.sqlite.wakeup import next_bell, pass_on
from dibs.stores.store import Ask, Busy, Claim, Grant

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

_OF_NAME = "namespace=?1 AND name=?2"
_OURS = f"{_OF_NAME} AND token=?3 AND fence > 0"
_RUNS = f"""EXISTS (SELECT 1 FROM lease WHERE lease.namespace=?1 AND lease.name=?2 AND lease.token='{TO_SEVERAL}'
    AND lease.ends > ?4 AND lease.boot=?5)"""
_HOLDS = f"{_OURS} AND fence=?6 AND ends > ?4 AND {_RUNS}"

CLEAR = f"DELETE FROM share WHERE {_OF_NAME}"

ALL = f"SELECT token FROM share WHERE {_OF_NAME} AND fence > 0"

DROP = f"DELETE FROM share WHERE {_OF_NAME} AND token=?3"

# In the place of what was kept for it, if something was.
ADD = """INSERT OR REPLACE INTO share (namespace, name, token, fence, ends, process, since, host, pid, user, note)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

EXTEND = f"UPDATE share SET ends=max(ends, ?7) WHERE {_HOLDS} RETURNING 1"

GIVE_BACK = f"DELETE FROM share WHERE {_OURS} RETURNING ends > ?4 AND {_RUNS}"

# The lease ends with the last of those who hold a part: now, if nobody is left.
SETTLE = f"""UPDATE lease SET ends = coalesce((SELECT max(share.ends) FROM share
        WHERE share.namespace=?1 AND share.name=?2 AND share.fence > 0 AND share.ends > ?3), ?3)
    WHERE {_OF_NAME} AND token='{TO_SEVERAL}' AND ends > ?3"""

EVICTED = f"SELECT evicted_token IS ?3 FROM lease WHERE {_OF_NAME}"

NOTE_EVICTION = f"""UPDATE lease SET evicted_token=?3, evicted_fence=?4, evicted_reason=?5, evicted_by=?6, evicted_at=?7
    WHERE {_OF_NAME}"""

ATTACH = f"UPDATE share SET process=?7, host=?8, pid=?9, user=?10, note=?11 WHERE {_HOLDS}"

DETACH = f"UPDATE share SET process=NULL WHERE {_HOLDS}"


def grant(db: Database, ask: Ask, share: Share) -> Grant | Busy:
    """Give *ask* its *part* if there is room for it and nobody is before it."""
    db.be_seen()
    with db.transaction():
        answer, bell = _decide(db, ask, share)
    return settle(db, ask, answer, bell)


def renew(db: Database, claim: Claim, now: int) -> bool:
    """Lengthen the part if it is still held. Called in a transaction."""
    until = now + micros(claim.ttl)
    extended = db.rows(EXTEND, (db.namespace, claim.name, claim.token, now, db.boot, claim.fence, until))
    if extended:
        db.rows(LENGTHEN, (until, db.namespace, claim.name))
    return bool(extended)


def release(db: Database, name: str, token: str) -> LossReason | None:
    """Give back the part or the ticket of *token*."""
    db.bells.take_back(token)
    with db.transaction():
        now = db.moment()
        given_back = db.rows(GIVE_BACK, (db.namespace, name, token, now, db.boot))
        db.rows(STRIKE, (token,))
        if given_back:
            db.rows(SETTLE, (db.namespace, name, now))
        bell = next_bell(db, name)
        evicted = db.row(EVICTED, (db.namespace, name, token))
    db.held.discard(token)
    pass_on(db, name, bell)
    if given_back:
        return None if given_back[0][0] else LossReason.EXPIRED
    return LossReason.EVICTED if evicted and evicted[0] else LossReason.TAKEN


def evict(db: Database, lease: Lease, fence: int, now: int, reason: str, by: str) -> bool:
    """Break the part that was granted with *fence*, if it is held. Called in a transaction."""
    broken = next((share for share in shares(db, lease.name, now) if share.fence == fence), None)
    if broken is None:
        return False
    name = (db.namespace, lease.name)
    db.rows(GIVE_BACK, (*name, broken.token, now, db.boot))
    db.rows(NOTE_EVICTION, (*name, broken.token, fence, reason, by, db.wall_clock()))
    db.rows(SETTLE, (*name, now))
    return True


def _decide(db: Database, ask: Ask, share: Share) -> tuple[Grant | Busy, str | None]:
    """The answer, and the bell to ring when it is committed."""
    lease, now = find(db, ask.name), db.moment()
    held = _held(db, lease, now) if lease and lease.token == TO_SEVERAL and lease.running(db, now) else []
    mine = next((row for row in held if row.token == ask.token), None)
    if mine is not None:  # its answer was lost: the same grant, from now on
        renew(db, Claim(ask.name, ask.token, mine.fence, ask.ttl), now)
        return Grant(mine.fence, ask.ttl), None
    if held and room.slots(held) != share.slots:
        raise other_slots(ask.name, share, room.slots(held) or 0)
    free_since = lease.free_since(db, now) if lease else 0
    if free_since is None and lease and not held:
        queue(db, ask)
        return Busy(lease.holder(now), (lease.ends - now) / 1e6), None
    if lease and free_since is not None and lease.running(db, now):  # all are dead, and we are the one who found out
        db.rows(DECLARE_FREE, (now, db.namespace, ask.name))
    return _wait_for_others(db, ask, share, held, free_since, now) or _give(db, ask, lease if held else None, now)


def _held(db: Database, lease: Lease, now: int) -> list[ShareRow]:
    """Who holds a part; those whose part is over are forgotten."""
    held, name = shares(db, lease.name, now), (db.namespace, lease.name)
    everyone = db.rows(ALL, name)
    if len(everyone) > len(held):
        live = {share.token for share in held}
        for (token,) in everyone:
            if token not in live:
                db.rows(DROP, (*name, token))
    return held


def _wait_for_others(
    db: Database, ask: Ask, share: Share, held: list[ShareRow], free_since: int | None, now: int
) -> tuple[Busy, str | None] | None:
    """The refusal if somebody is before us, or there is no room; who let its time pass is struck off."""
    struck = False
    while (front := first(db, ask.name)) is not None and front.token != ask.token:
        if held and not room.may_enter(held, front.token):
            break
        until, bell = room.kept_until(db, ask.name, front.token), None
        if until is None and free_since is not None and not struck:
            until = free_since + RESERVED
        if until is None:
            until, bell = room.keep(db, ask.name, front.token, now), front.bell
        if until > now:
            queue(db, ask)
            return Busy(front.holder(ask.name), (until - now) / 1e6), bell
        db.rows(STRIKE, (front.token,))
        struck = True
    if (front is None or front.token == ask.token) and room.fits(held, share):
        return None
    queue(db, ask)
    return Busy(held[0].holder(ask.name, now), (min(row.ends for row in held) - now) / 1e6), None


def _give(db: Database, ask: Ask, lease: Lease | None, now: int) -> tuple[Grant, str | None]:
    """Grant beside those who hold the *lease*, or alone; whoever is next may have room as well."""
    ends = now + micros(ask.ttl)
    if lease is None:
        db.rows(CLEAR, (db.namespace, ask.name))
    fence = take(db, ask, TO_SEVERAL, max(ends, lease.ends if lease else 0), None)
    if fence is None:
        raise exhausted(db, ask.name)
    who = (db.process, db.wall_clock(), db.host, db.pid, db.user, ask.note)
    db.rows(ADD, (db.namespace, ask.name, ask.token, fence, ends, *who))
    db.rows(STRIKE, (ask.token,))
    return Grant(fence, ask.ttl), next_bell(db, ask.name)
