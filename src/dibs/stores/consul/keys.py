"""From a name to its keys in Consul, and back. Distinct names have distinct keys, and so have distinct namespaces.

    dibs/NAMESPACE/NAME/.lock          exists while the lock has a holder, locked with the holder's session
    dibs/NAMESPACE/NAME/.last          the token of the last grant; the index that wrote it is that grant's fence
    dibs/NAMESPACE/NAME/.line/TOKEN    the ticket of a waiter, locked with the waiter's session
    dibs/NAMESPACE/NAME/.waits         exists while there are waiters: an ask without a ticket must not take the lock
    dibs/NAMESPACE/NAME/.evicted       the last eviction of a holder
    dibs/NAMESPACE/.client/SESSION     every grant of a session checks its index; see `sessions`

A quoted name never begins with a dot, so none can be taken for one of these. ``NAME/.lock`` is also what ``consul
lock dibs/NAMESPACE/NAME`` locks.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

UNQUOTED = ":@+=,"
"""What stays as it is in a key, besides letters, digits and ``_.-~``."""


class ConsulKeys(NamedTuple):
    """The keys of one name."""

    all: str
    """The prefix of all of them."""
    held: str
    last: str
    tickets: str
    """The prefix of the tickets."""
    waits: str
    evicted: str


class ConsulNaming:
    """The keys of one namespace under *root*."""

    def __init__(self, root: str, namespace: str) -> None:
        self._top = f"{root}/{quoted(namespace)}/"

    def keys(self, name: str) -> ConsulKeys:
        """The keys of *name*."""
        top = f"{self._top}{quoted(name)}/"
        return ConsulKeys(top, *(f"{top}.{what}" for what in ("lock", "last", "line/", "waits", "evicted")))

    def client(self, session: str) -> str:
        """The key that has the stamp of *session*."""
        return f"{self._top}.client/{session}"

    def under(self, prefix: str) -> str:
        """The prefix of the keys of all names that begin with *prefix*."""
        return self._top + quoted(prefix)

    def name(self, key: str) -> str | None:
        """The name that *key* belongs to; None if it belongs to no name."""
        name, slash, _ = key.removeprefix(self._top).partition("/")
        return unquote(name) if slash and not name.startswith(".") else None


def quoted(text: str) -> str:
    """*text* as one part of a key: a path without empty parts, ``.`` and ``..``, which HTTP would resolve."""
    part = quote(text, safe=UNQUOTED)
    return "%2E" + part[1:] if part.startswith(".") else part
