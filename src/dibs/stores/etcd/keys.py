"""Which keys of etcd a lock has: one for each attempt to take it, in a folder of the lock's own.

``dibs/locks/NAMESPACE/NAME/TOKEN`` is there while the attempt holds the lock or waits for it. Of all keys of a name,
the one that was created first holds it; or several, as `queue` says, if their tokens ask for shares. The token in the
key keeps attempts apart that share a lease of etcd. ``dibs/evicted/NAMESPACE/NAME`` tells of the last eviction, and
``…/NAME/TOKEN`` of the eviction of that grant. ``/``, ``%`` and everything outside printable ASCII are
percent-encoded, so every part ends where it seems to, and "L" is not "L/x".
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote

from dibs.share import SHARED, Share, share_of

READABLE = "!\"#$&'()*+,:;<=>?@[\\]^`{|} "
"""What stays as it is, besides letters, digits and ``_.-~``."""


class EtcdKeys(NamedTuple):
    """The keys of one lock, as the gateway takes them: in base64."""

    first: str
    """Where the folder of all attempts begins."""
    end: str
    """What comes after the folder."""
    evicted: str
    """The last eviction of a holder."""
    share: str
    """Where the attempts for a shared lock begin in the folder."""
    share_end: str
    """What comes after them."""


class EtcdKeyParts(NamedTuple):
    """The parts of the key of an attempt."""

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
        """The key that is there if the holder with *token* was evicted."""
        return base64(f"{self._evicted}{encoded(name)}/{encoded(token)}")

    def mark(self, name: str, token: str) -> str:
        """The key that makes etcd refuse an ask of *token*, which was given back before the ask came."""
        return base64(f"{self._marks}{encoded(name)}/{encoded(token)}")

    def folder(self, prefix: str) -> tuple[str, str]:
        """Where the keys of all names that begin with *prefix* begin and end."""
        first = self._locks + encoded(prefix)
        return base64(first), base64(_after(first))

    def attempt(self, key: str) -> EtcdKeyParts | None:
        """The name and token in *key*; None if it is not the key of an attempt in this namespace."""
        text = b64decode(key).decode("utf-8", "replace")
        name, slash, token = text.removeprefix(self._locks).partition("/")
        ours = text.startswith(self._locks) and slash and name and token and "/" not in token
        return EtcdKeyParts(unquote(name), unquote(token)) if ours else None

    def share(self, key: str) -> Share | None:
        """The share that *key* asks for; None if it is for all of the name, or is none of ours."""
        attempt = self.attempt(key)
        return share_of(attempt.token) if attempt is not None else None

    def _keys(self, name: str) -> EtcdKeys:
        folder = f"{self._locks}{encoded(name)}/"
        share, evicted = folder + SHARED.token(""), self._evicted + encoded(name)
        return EtcdKeys(*map(base64, (folder, _after(folder), evicted, share, _after(share))))


def _after(prefix: str) -> str:
    """The first text after all that begin with *prefix*."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def encoded(text: str) -> str:
    """*text* without anything that could be mistaken for the frame around it."""
    return quote(text, safe=READABLE)


def base64(text: str) -> str:
    """*text* as the gateway takes keys and values."""
    return b64encode(text.encode()).decode()
