"""The keys that this client may have at etcd, each with the moment at which it has to be deleted.

Their lease goes on while one of them is renewed. So a grant that is not renewed, an ask that was not answered, and a
waiter that left in an outage end here, by the clock of this process. It is this process that keeps the lease alive:
when it cannot, the lease ends, and all the keys with it.
"""

from __future__ import annotations

from typing import NamedTuple


class EtcdTicket(NamedTuple):
    """One attempt: it holds a lock, waits for one, or was given up and may still arrive."""

    name: str
    token: str
    key: str
    lease: int
    until: float
    """When it ends unless it is renewed, or asked for again."""
    fence: int = 0
    """The fence of its grant; 0 before that."""


class EtcdTickets:
    """The tickets of one client, by token."""

    def __init__(self) -> None:
        self._tickets: dict[str, EtcdTicket] = {}

    def get(self, token: str) -> EtcdTicket | None:
        """The ticket of *token*; None if there is none."""
        return self._tickets.get(token)

    def put(self, ticket: EtcdTicket) -> None:
        """Add *ticket*, or extend it: an end that is later already stays."""
        known = self._tickets.get(ticket.token)
        until = ticket.until if known is None else max(known.until, ticket.until)
        self._tickets[ticket.token] = ticket._replace(until=until)

    def given_up(self, token: str) -> None:
        """Note that the key of *token* is not there, but may still arrive: it is deleted when its time has passed."""
        ticket = self._tickets.get(token)
        if ticket is not None:
            self._tickets[token] = ticket._replace(fence=0)

    def drop(self, token: str) -> None:
        """Forget *token*: its key is gone, or is another client's by now."""
        self._tickets.pop(token, None)

    def under(self, lease: int) -> list[EtcdTicket]:
        """The tickets whose keys are under *lease*."""
        return [ticket for ticket in list(self._tickets.values()) if ticket.lease == lease]

    def overdue(self, now: float) -> list[EtcdTicket]:
        """The tickets whose time has passed."""
        return [ticket for ticket in list(self._tickets.values()) if ticket.until <= now]
