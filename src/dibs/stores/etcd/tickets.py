"""The keys that this client may have at etcd, each with the moment at which it has to go.

The lease of etcd above them goes on for as long as one of them is renewed. So a grant that nobody renews, a try that
nobody answered and a waiter that left in an outage end here, by the clock of this process: it is this process that
keeps the lease alive, and when it cannot, the lease ends and takes them all along.
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
    """When it ends unless it is renewed or asked for again."""
    fence: int = 0
    """The fence it was granted; 0 before that."""


class EtcdTickets:
    """Those of one client, by their tokens."""

    def __init__(self) -> None:
        self._tickets: dict[str, EtcdTicket] = {}

    def get(self, token: str) -> EtcdTicket | None:
        """The ticket of *token*."""
        return self._tickets.get(token)

    def put(self, ticket: EtcdTicket) -> None:
        """It is there, or will be; an end that was later already stays."""
        known = self._tickets.get(ticket.token)
        until = ticket.until if known is None else max(known.until, ticket.until)
        self._tickets[ticket.token] = ticket._replace(until=until)

    def given_up(self, token: str) -> None:
        """Its key is not there, but may still come: it is deleted when its time has passed."""
        ticket = self._tickets.get(token)
        if ticket is not None:
            self._tickets[token] = ticket._replace(fence=0)

    def drop(self, token: str) -> None:
        """It is gone, or not ours any more."""
        self._tickets.pop(token, None)

    def under(self, lease: int) -> list[EtcdTicket]:
        """All under *lease*."""
        return [ticket for ticket in list(self._tickets.values()) if ticket.lease == lease]

    def overdue(self, now: float) -> list[EtcdTicket]:
        """Whose time has passed."""
        return [ticket for ticket in list(self._tickets.values()) if ticket.until <= now]
