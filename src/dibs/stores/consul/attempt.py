"""One ask on its way to a grant: what it has at Consul, and the transactions that it sends. No I/O."""

from __future__ import annotations

from urllib.parse import quote

from dibs.holder import here
from dibs.stores.consul.keys import ConsulKeys
from dibs.stores.consul.port.agent import Entry, Op, wall_clock
from dibs.stores.consul.sessions import ConsulSession
from dibs.stores.consul.txn import absent, deleted, locked, packed, seen, unchanged, written
from dibs.stores.consul.view import ConsulView
from dibs.stores.store import Ask

MOST_SKIPPED = 40
"""Tickets that one grant takes away: a transaction of Consul has at most 64 operations."""

STAMP, TURN = 0, 2
"""Places of operations in the transaction that takes."""


class ConsulAttempt:
    """One of them."""

    __slots__ = ("alone", "ask", "called", "keys", "session", "ticket", "unsure", "watched")

    def __init__(self, ask: Ask, keys: ConsulKeys) -> None:
        self.ask, self.keys = ask, keys
        self.session: ConsulSession | None = None
        self.unsure = False  # whether something was sent of which nobody knows whether it was carried out
        self.ticket = 0  # its index; 0 if there is none
        self.watched: Entry | None = None  # what it waits for
        self.called = False  # whether that is over, and it is our turn
        self.alone = 0  # the index of `.waits` when nobody else was in line

    @property
    def key(self) -> str:
        """Of its ticket."""
        return self.keys.tickets + quote(self.ask.token, safe="")

    def taking(self, session: ConsulSession, pid: int, found: ConsulView | None) -> list[Op]:
        """Take the lock; nobody is wronged if what was *found* is not so any more: then it is refused."""
        keys, token = self.keys, self.ask.token
        waits, held, ahead = (found.waits, found.held, found.ahead_of(token)) if found is not None else (None, None, ())
        free = absent(keys.held) if held is None else unchanged(keys.held, held.modified)
        if self.ticket:
            turn = unchanged(self.key, self.ticket)
        else:
            turn = absent(keys.waits) if waits is None else unchanged(keys.waits, waits.modified)
        # With the time: Consul leaves the index of a key alone that is written as it was, and the index is the fence.
        last = packed(token=token, at=wall_clock())
        take = [locked(keys.held, session.id, self._facts(session, pid)), written(keys.last, last)]
        leave = [*(ticket.key for ticket in ahead[:MOST_SKIPPED]), *([self.key] if self.ticket else [])]
        alone = self.alone if found is None else self.alone_in(found)
        ops = [unchanged(session.key, session.stamp), free, turn, *take, *map(deleted, leave)]
        return ops + (opened(keys, alone) if alone else [])

    def queueing(self, session: ConsulSession, pid: int) -> list[Op]:
        """Take a ticket, and look."""
        ticket = locked(self.key, session.id, self._facts(session, pid))
        waits = written(self.keys.waits, packed(token=self.ask.token))
        return [unchanged(session.key, session.stamp), ticket, waits, seen(self.keys.all)]

    def alone_in(self, found: ConsulView) -> int:
        """The index of `.waits` if nobody waits but us, or whoever stood before us; else 0."""
        if found.waits is None:
            return 0
        place = len(found.ahead_of(self.ask.token)) + (1 if self.ticket else 0)
        return found.waits.modified if place >= len(found.tickets) else 0

    def _facts(self, session: ConsulSession, pid: int) -> bytes:
        """Who we are, as others see it in the value of what we lock."""
        who = here(pid, self.ask.name, self.ask.note)
        me = {"host": who.host, "pid": who.pid, "user": who.user, "note": who.note, "since": wall_clock()}
        return packed(token=self.ask.token, delay=session.delay, **me)


def opened(keys: ConsulKeys, index: int) -> list[Op]:
    """Let in who has no ticket: nobody else waits, if nobody has come since `.waits` had that *index*."""
    return [unchanged(keys.waits, index), deleted(keys.waits)]
