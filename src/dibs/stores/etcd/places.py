"""The keys that this client may have at etcd, each with the moment at which it has to go.

The lease of etcd above them goes on for as long as one of them is renewed. So a grant that nobody renews, a try that
nobody answered and a waiter that left in an outage end here, by the clock of this process: it is this process that
keeps the lease alive, and when it cannot, the lease ends and takes them all along.
"""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """One attempt: it holds a lock, waits for one, or was given up and may still arrive."""

    name: str
    token: str
    key: str
    lease: int
    until: float
    """When it ends unless it is renewed or asked for again."""
    fence: int = 0
    """The fence it was granted; 0 before that."""


class Places:
    """Those of one client, by their tokens."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def get(self, token: str) -> Place | None:
        """The place of *token*."""
        return self._places.get(token)

    def put(self, place: Place) -> None:
        """It is there, or will be; an end that was later already stays."""
        known = self._places.get(place.token)
        until = place.until if known is None else max(known.until, place.until)
        self._places[place.token] = place._replace(until=until)

    def given_up(self, token: str) -> None:
        """Its key is not there, but may still come: it is deleted when its time has passed."""
        place = self._places.get(token)
        if place is not None:
            self._places[token] = place._replace(fence=0)

    def drop(self, token: str) -> None:
        """It is gone, or not ours any more."""
        self._places.pop(token, None)

    def under(self, lease: int) -> list[Place]:
        """All under *lease*."""
        return [place for place in list(self._places.values()) if place.lease == lease]

    def overdue(self, now: float) -> list[Place]:
        """Whose time has passed."""
        return [place for place in list(self._places.values()) if place.until <= now]
