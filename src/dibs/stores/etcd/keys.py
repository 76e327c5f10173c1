"""Which keys of etcd a lock has: one for each attempt to take it, in a folder of the lock's own.

``dibs/locks/NAMESPACE/NAME/TOKEN`` is there while the attempt holds the lock or waits for it: of all keys of a name the
one that was created first holds it; or several, as `line` says, if their tokens say that they want parts of it. A token
in the key is what keeps attempts apart that share a lease of etcd. ``dibs/evicted/NAMESPACE/NAME`` says who broke the
lock the last time, and ``…/NAME/TOKEN`` says it of each grant that was broken. ``/``, ``%`` and what is no printable
ASCII are percent-encoded, so every part ends where it seems to, and "L" is not "L/x".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from dibs.share import SHARED, Share, share_of

READABLE = "!\"#$&'()*+,:;<=>?@[\\]^`{|} "
"""Stays as it is, besides letters, digits and ``_.-~``."""


class EtcdKeys(NamedTuple):
    """The keys of one lock, as the gateway takes them: in base64."""

    first: str
    """The folder of all attempts begins here."""
    end: str
    """The folder ends before this."""
    evicted: str
    """The last time that somebody broke the lock."""
    share: str
    """The attempts to share the lock begin here, in the folder."""
    share_end: str
    """And end before this."""


class EtcdKeyParts(NamedTuple):
    """What the key of an attempt says."""

    name: str
    token: str


class EtcdNaming:
    """How the names of one namespace become keys, and keys become names."""

    def __init__(self, namespace: str) -> None:
        self._locks = f"dibs/locks/{encoded(namespace)}/"
        self._evicted = f"dibs/evicted/{encoded(namespace)}/"
        self._marks = f"dibs/given-back/{encoded(namespace)}/"
        self.keys = lru_cache(maxsize=4096)(self._keys)

    def key(self, name: str, token: str) -> str:
        """The key of one attempt."""
        return base64(f"{self._locks}{encoded(name)}/{encoded(token)}")

    def evicted(self, name: str, token: str) -> str:
        """The key that is there if somebody broke the grant of *token*."""
        return base64(f"{self._evicted}{encoded(name)}/{encoded(token)}")

    def mark(self, name: str, token: str) -> str:
        """The key that is there if an ask of *token* is refused, since it was given back before it came."""
        return base64(f"{self._marks}{encoded(name)}/{encoded(token)}")

    def folder(self, prefix: str) -> tuple[str, str]:
        """Where the keys of all names that begin with *prefix* begin and end."""
        first = self._locks + encoded(prefix)
        return base64(first), base64(_after(first))

    def attempt(self, key: str) -> EtcdKeyParts | None:
        """Whose key it is; None if it is none of ours."""
        text = b64decode(key).decode("utf-8", "replace")
        name, slash, token = text.removeprefix(self._locks).partition("/")
        ours = text.startswith(self._locks) and slash and name and token and "/" not in token
        return EtcdKeyParts(unquote(name), unquote(token)) if ours else None

    def share(self, key: str) -> Share | None:
        """What the attempt is for; None if it is for all of the name, or is none of ours."""
        attempt = self.attempt(key)
        return share_of(attempt.token) if attempt is not None else None

    def _keys(self, name: str) -> EtcdKeys:
        folder = f"{self._locks}{encoded(name)}/"
        share, evicted = folder + SHARED.token(""), self._evicted + encoded(name)
        return EtcdKeys(*map(base64, (folder, _after(folder), evicted, share, _after(share))))


def _after(prefix: str) -> str:
    """What comes after all that begins with *prefix*."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def encoded(text: str) -> str:
    """*text* without anything that could be mistaken for the frame around it."""
    return quote(text, safe=READABLE)


def base64(text: str) -> str:
    """*text* as the gateway takes keys and values."""
    return b64encode(text.encode()).decode()
