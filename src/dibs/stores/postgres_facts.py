"""Turns rows of the tables into what people are shown: holders, waiters, the last eviction."""

from __future__ import annotations

from typing import NamedTuple

from dibs.holder import Eviction, Holder, LockState
from dibs.ports.postgres_statement import Row, Rows
from dibs.ports.postgres_values import original


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
    """Of a row that says who."""
    return Person(*row).holder(name, None, None)


def state(name: str, rows: Rows, waiting: Rows) -> LockState:
    """Of the row of *name*, if there is one, and of those who wait for it."""
    line = tuple(waiter(name, row) for row in waiting)
    if not rows:
        return LockState(name, 0, None, line, None)
    held, fence, reason, by, at = rows[0][8:]
    last = holder(rows[0])
    eviction = Eviction(int(fence), original(reason), original(by), float(at or 0)) if fence else None
    return LockState(name, last.fence, last if held == "t" else None, line, eviction)
