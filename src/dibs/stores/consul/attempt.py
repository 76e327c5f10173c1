"""One ask on its way to a grant: what it has at Consul, and the transactions that it sends. No I/O."""

from __future__ import annotations

from urllib.parse import quote

from dibs.holder import here
from dibs.runtime.clock import wall_clock
from dibs.stores.consul.keys import ConsulKeys
from dibs.stores.consul.port.agent import Entry, Op
from dibs.stores.consul.sessions import ConsulSession
from dibs.stores.consul.txn import absent, deleted, locked, packed, seen, unchanged, written
from dibs.stores.consul.view import ConsulView
from dibs.stores.store import Ask

MOST_SKIPPED = 40
"""Tickets of others that one grant can delete: a transaction of Consul has at most 64 operations."""

STAMP, TURN = 0, 2
"""The index of these operations in the transaction that takes the lock."""


class ConsulAttempt:
    """One ask: its ticket and session, what it waits for, and whether a request of it is still open."""

    __slots__ = ("alone", "ask", "called", "keys", "session", "ticket", "unsure", "watched")

    def __init__(self, ask: Ask, keys: ConsulKeys) -> None:
        self.ask, self.keys = ask, keys
        self.session: ConsulSession | None = None
        self.unsure = False  # whether a request was sent and not answered: it may have been carried out
        self.ticket = 0  # the index of its ticket; 0 if it has none
        self.watched: Entry | None = None  # the key whose end it waits for
        self.called = False  # whether that key has ended, so that it is our turn
        self.alone = 0  # the index of `.waits` when nobody else was waiting

    @property
    def key(self) -> str:
        """The key of its ticket."""
        return self.keys.tickets + quote(self.ask.token, safe="")

    def taking(self, session: ConsulSession, pid: int, found: ConsulView | None) -> list[Op]:
        """The operations that take the lock. Consul refuses them if what was *found* has changed since."""
        keys, token = self.keys, self.ask.token
        waits, held, ahead = (found.waits, found.held, found.ahead_of(token)) if found is not None else (None, None, ())
        free = absent(keys.held) if held is None else unchanged(keys.held, held.modified)
        if self.ticket:
            turn = unchanged(self.key, self.ticket)
        else:
            turn = absent(keys.waits) if waits is None else unchanged(keys.waits, waits.modified)
        # With the time: a key that is written with the value it has keeps its index, and the index is the fence.
        last = packed(token=token, at=wall_clock())
        take = [locked(keys.held, session.id, self._facts(session, pid)), written(keys.last, last)]
        leave = [*(ticket.key for ticket in ahead[:MOST_SKIPPED]), *([self.key] if self.ticket else [])]
        alone = self.alone if found is None else self.alone_in(found)
        ops = [unchanged(session.key, session.stamp), free, turn, *take, *map(deleted, leave)]
        return ops + (opened(keys, alone) if alone else [])

    def queueing(self, session: ConsulSession, pid: int) -> list[Op]:
        """The operations that take a ticket and read all keys of the name."""
        ticket = locked(self.key, session.id, self._facts(session, pid))
        waits = written(self.keys.waits, packed(token=self.ask.token))
        return [unchanged(session.key, session.stamp), ticket, waits, seen(self.keys.all)]

    def alone_in(self, found: ConsulView) -> int:
        """The index of `.waits` if no client waits but us and those ahead of us; 0 if one does."""
        if found.waits is None:
            return 0
        known = len(found.ahead_of(self.ask.token)) + (1 if self.ticket else 0)
        return found.waits.modified if known >= len(found.tickets) else 0

    def _facts(self, session: ConsulSession, pid: int) -> bytes:
        """The value of a key that we lock: it shows this process to others."""
        who = here(pid, self.ask.name, self.ask.note)
        me = {"host": who.host, "pid": who.pid, "user": who.user, "note": who.note, "since": wall_clock()}
        return packed(token=self.ask.token, delay=session.delay, **me)


def opened(keys: ConsulKeys, index: int) -> list[Op]:
    """Let in asks without a ticket again, if no waiter has come since `.waits` had that *index*."""
    return [unchanged(keys.waits, index), deleted(keys.waits)]
