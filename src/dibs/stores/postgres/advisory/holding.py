"""What a client knows of one ask for a session lock: what is wanted, what is held, and a place in the server's line."""

from __future__ import annotations

from typing import NamedTuple

from dibs.stores.postgres.port.session import Session
from dibs.stores.store import Ask


class Wanted(NamedTuple):
    """What is asked for, in the words of the statements."""

    ask: Ask
    key: int
    facts: tuple[bytes, ...]
    """The values of `RECORD`: key, namespace, name, token, host, pid, login, note."""


class AdvisoryLock:
    """A lock that is held, or may be."""

    __slots__ = ("ends_at", "fence", "given_back", "key", "name", "session", "token")

    def __init__(self, wanted: Wanted, session: Session, ends_at: float) -> None:
        self.name, self.token, self.key, self.session = wanted.ask.name, wanted.ask.token, wanted.key, session
        self.fence = 0
        """0 while it is not known whether it is held."""
        self.ends_at = ends_at
        """When it is over for its lease, unless a heartbeat is answered."""
        self.given_back = False
        """Whether an unlock was sent."""


class Wait:
    """A place in the server's line."""

    __slots__ = ("called_at", "key", "session", "wanted")

    def __init__(self, session: Session, wanted: Wanted) -> None:
        self.session, self.wanted, self.key = session, wanted, wanted.key
        self.called_at: float | None = None
        """When it was found that the lock is ours, and nobody came for it."""
