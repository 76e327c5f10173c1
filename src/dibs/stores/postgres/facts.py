"""Turns rows of the tables into what people are shown: holders, waiters, the last eviction."""

from __future__ import annotations

from typing import NamedTuple

from dibs.holder import Eviction, Holder, LockState
from dibs.share import shown_share
from dibs.stores.postgres.port.statement import Row, Rows
from dibs.stores.postgres.port.values import original


class Person(NamedTuple):
    """Who it is: the columns that every table ends with."""

    host: str | None
    pid: str | None
    login: str | None
    note: str | None
    since: str | None

    def holder(self, name: str, fence: str | None, left: str | None) -> Holder:
        """The same with what only a holder has; *fence* is None for a waiter."""
        host, login, note = original(self.host), original(self.login), original(self.note)
        ends = None if left is None else float(left)
        return Holder(name, int(fence or 0), host, int(self.pid or 0), login, note, float(self.since or 0), ends)


def holder(row: Row) -> Holder:
    """Of a row that begins with name, fence, who, and what is left of the lease."""
    name, fence, *who, left = row[:8]
    return Person(*who).holder(original(name), fence, left)


def waiter(name: str, row: Row) -> Holder:
    """Of a row that says who, and perhaps with which token."""
    token = row[5] if len(row) > 5 else None
    return Person(*row[:5]).holder(name, None, None)._replace(share=shown_share(token or ""))


def shares(rows: Rows) -> tuple[Holder, ...]:
    """Who holds a part, of rows that end with the token."""
    return tuple(holder(row)._replace(share=shown_share(row[8] or "")) for row in rows)


def session_holders(rows: Rows, name: str = "") -> tuple[Holder, ...]:
    """Who has a session lock, of rows that begin as those of `parts` and go on with what is known of the session.

    *name* is that of rows that tell none.
    """
    found = [share if row[1] is not None else _session(row) for row, share in zip(rows, shares(rows), strict=True)]
    return tuple(each._replace(name=name or each.name) for each in found)


def _session(row: Row) -> Holder:
    """A session that has the lock and no row of its own."""
    backend, user, address, application, since = row[9:]
    told = f"session {backend} of the database" + (f", {application}" if application else "")
    note = f"{told}: a transaction or another program; SELECT pg_terminate_backend({backend}) ends it"
    return Person(address or "the server's host", backend, user, note, since).holder(original(row[0]), None, None)


def state(name: str, rows: Rows, waiting: Rows, sharing: Rows | None = None) -> LockState:
    """Of the row of *name*, if there is one, of those who wait for it, and of those who hold a part of it."""
    line = tuple(waiter(name, row) for row in waiting)
    if not rows:
        return LockState(name, 0, None, line, None)
    held, fence, reason, by, at = rows[0][8:]
    last = holder(rows[0])
    eviction = Eviction(int(fence), original(reason), original(by), float(at or 0)) if fence else None
    several = shares(sharing or [])
    one = several[0] if several else last if held == "t" else None
    return LockState(name, last.fence, one, line, eviction, sharing=several)
