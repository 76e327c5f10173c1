"""What happens to a grant of the embedded store: it is renewed, given back, handed over, or broken."""

# ruff: noqa: S608 - the statements are put together from constants
from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from dibs.errors import LossReason
from dibs.holder import here, signature
from dibs.share import share_of
from dibs.stores.sqlite import shares as sqlite_shares
from dibs.stores.sqlite.row import STRIKE, TO_SEVERAL, find, micros
from dibs.stores.sqlite.wakeup import next_bell, pass_on
from dibs.stores.store import Claim

if TYPE_CHECKING:
    from dibs.stores.sqlite.port.database import Database

_OURS = "namespace=?1 AND name=?2 AND token=?3"
_RUNS = f"{_OURS} AND ends > ?4 AND boot=?5"

# With the fence: an ask that was carried out late, after its grant had ended, has granted the token anew.
_HOLDS = f"{_RUNS} AND fence=?6"

RENEW = f"UPDATE lease SET ends=max(ends, ?7) WHERE {_HOLDS} RETURNING 1"

GIVE_BACK = f"""UPDATE lease SET token=NULL, ends=?4 WHERE {_RUNS}
    AND NOT EXISTS (SELECT 1 FROM waiter WHERE waiter.namespace=?1 AND waiter.name=?2)"""

# The answer is whether it held until now: else *ends* stays what it was, before ?4.
RELEASE = f"""UPDATE lease SET token=NULL, ends=min(ends, ?4) WHERE {_OURS} RETURNING ends = ?4 AND boot=?5,
    (SELECT bell FROM waiter WHERE waiter.namespace=?1 AND waiter.name=?2 ORDER BY ticket LIMIT 1)"""

REASON = "SELECT token IS ?3, evicted_token IS ?3 FROM lease WHERE namespace=?1 AND name=?2"

ATTACH = f"UPDATE lease SET process=?7, host=?8, pid=?9, user=?10, note=?11 WHERE {_HOLDS}"

DETACH = f"UPDATE lease SET process=NULL WHERE {_HOLDS}"

EVICT = """UPDATE lease SET evicted_token=token, evicted_fence=fence, evicted_reason=?4, evicted_by=?5, evicted_at=?6,
    token=NULL, ends=?3 WHERE namespace=?1 AND name=?2"""


def renew(db: Database, claims: Sequence[Claim]) -> list[LossReason | None]:
    """Lengthen all claims that hold, in one write; answer in their order."""
    db.be_seen()
    with nullcontext() if len(claims) == 1 and share_of(claims[0].token) is None else db.transaction():
        now = db.moment()
        answers = [None if _renew(db, claim, now) else why_not(db, claim.name, claim.token) for claim in claims]
    db.held.difference_update(claim.token for claim, reason in zip(claims, answers, strict=True) if reason is not None)
    return answers


def _renew(db: Database, claim: Claim, now: int) -> bool:
    if claim.share is not None:
        return sqlite_shares.renew(db, claim, now)
    return bool(db.rows(RENEW, (*_holds(db, claim, now), now + micros(claim.ttl))))


def release(db: Database, name: str, token: str) -> LossReason | None:
    """Give back the grant or the ticket of *token*."""
    db.bells.take_back(token)
    values = (db.namespace, name, token, db.moment(), db.boot)
    if db.changed(GIVE_BACK, values):
        db.held.discard(token)
        return None  # nobody waits
    given_back = db.row(RELEASE, values)
    if given_back is None:
        return _leave_line(db, name, token)
    db.held.discard(token)
    held, bell = given_back
    pass_on(db, name, bell)
    return None if held else LossReason.EXPIRED


def _leave_line(db: Database, name: str, token: str) -> LossReason:
    """Give the ticket back. If the lock is free and was kept for us, the next one must hear of it."""
    with db.transaction():
        waited = db.rows(f"{STRIKE} RETURNING 1", (token,))
        bell = next_bell(db, name) if waited else None
        reason = why_not(db, name, token)
    db.held.discard(token)
    pass_on(db, name, bell)
    return reason


def attach(db: Database, claim: Claim, note: str) -> None:
    """Make this process the holder."""
    who = (db.process, db.host, db.pid, db.user, note)
    statement = ATTACH if claim.share is None else sqlite_shares.ATTACH
    db.held.add(claim.token)
    db.rows(statement, (*_holds(db, claim, db.moment()), *who))


def detach(db: Database, claim: Claim) -> None:
    """Let the lease outlive this process."""
    statement = DETACH if claim.share is None else sqlite_shares.DETACH
    db.rows(statement, _holds(db, claim, db.moment()))


def evict(db: Database, name: str, fence: int, reason: str) -> bool:
    """Break the grant with *fence* if it holds."""
    with db.transaction():
        lease, now, by = find(db, name), db.moment(), signature(here(db.pid, name, ""))
        if lease is None or lease.free_since(db, now) is not None:
            return False
        if lease.token == TO_SEVERAL:
            if not sqlite_shares.evict(db, lease, fence, now, reason, by):
                return False
        elif lease.fence != fence:
            return False
        else:
            db.rows(EVICT, (db.namespace, name, now, reason, by, db.wall_clock()))
        bell = next_bell(db, name)
    pass_on(db, name, bell)
    return True


def _holds(db: Database, claim: Claim, now: int) -> tuple[object, ...]:
    return (db.namespace, claim.name, claim.token, now, db.boot, claim.fence)


def why_not(db: Database, name: str, token: str) -> LossReason:
    """Why *token* does not hold *name*."""
    found = db.row(REASON, (db.namespace, name, token))
    ended, evicted = found or (False, False)
    return LossReason.EVICTED if evicted else LossReason.EXPIRED if ended else LossReason.TAKEN
