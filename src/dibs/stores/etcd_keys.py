"""Which keys of etcd a lock has: one for each attempt to take it, in a folder of the lock's own.

``dibs/locks/NAMESPACE/NAME/TOKEN`` is there while the attempt holds the lock or waits for it: of all keys of a name the
one that was created first holds it. A token in the key is what keeps attempts apart that share a lease of etcd. ``/``,
``%`` and what is no printable ASCII are percent-encoded, so every part ends where it seems to, and "L" is not "L/x".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

READABLE = "!\"#$&'()*+,:;<=>?@[\\]^`{|} "
"""Stays as it is, besides letters, digits and ``_.-~``."""


class Keys(NamedTuple):
    """The keys of one lock, as the gateway takes them: in base64."""

    first: str
    """The folder of all attempts begins here."""
    end: str
    """The folder ends before this."""
    evicted: str
    """The last time that somebody broke the lock."""


class Attempt(NamedTuple):
    """What the key of an attempt says."""

    name: str
    token: str


class Naming:
    """How the names of one namespace become keys, and keys become names."""

    def __init__(self, namespace: str) -> None:
        self._locks = f"dibs/locks/{encoded(namespace)}/"
        self._evicted = f"dibs/evicted/{encoded(namespace)}/"
        self.keys = lru_cache(maxsize=4096)(self._keys)

    def key(self, name: str, token: str) -> str:
        """The key of one attempt."""
        return base64(f"{self._locks}{encoded(name)}/{encoded(token)}")

    def folder(self, prefix: str) -> tuple[str, str]:
        """Where the keys of all names that begin with *prefix* begin and end."""
        first = self._locks + encoded(prefix)
        return base64(first), base64(first[:-1] + chr(ord(first[-1]) + 1))

    def attempt(self, key: str) -> Attempt | None:
        """Whose key it is; None if it is none of ours."""
        text = b64decode(key).decode("utf-8", "replace")
        name, slash, token = text.removeprefix(self._locks).partition("/")
        ours = text.startswith(self._locks) and slash and name and token and "/" not in token
        return Attempt(unquote(name), unquote(token)) if ours else None

    def _keys(self, name: str) -> Keys:
        folder = self._locks + encoded(name)
        return Keys(base64(folder + "/"), base64(folder + "0"), base64(self._evicted + encoded(name)))


def encoded(text: str) -> str:
    """*text* without anything that could be mistaken for the frame around it."""
    return quote(text, safe=READABLE)


def base64(text: str) -> str:
    """*text* as the gateway takes keys and values."""
    return b64encode(text.encode()).decode()
