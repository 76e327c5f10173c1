"""Which nodes a lock has: a parent named after it, and under that a node for each attempt to take it.

``/dibs/<namespace>/<name>/<guid>-<number>``. In namespaces and names everything that ZooKeeper refuses in a path, or
reads as more than one part of it, is percent-encoded, and so is ``%``: distinct names never share a node, and each can
be read back. The number is the server's and says who came first. The guid says whose node it is, also to somebody whose
request to create it was never answered. It is made from the token, which nobody who lists the nodes shall learn. For a
part of the name it begins as the token does, so that the list alone tells whose turn it is, and is as long as any
other: to an older dibs, which knows no parts, it is the place of one who wants all of the name.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from dibs.part import part_of

READABLE = "!\"#$&'()*+,:;<=>?@[\\]^`{|}"
"""Stays as it is, besides letters, digits and ``_.-~``."""

NUMBERS = 2**32
"""The server counts in 32 bits with a sign, and wraps around."""


class Paths:
    """The nodes of one namespace."""

    def __init__(self, base: str, namespace: str) -> None:
        self.space = f"{base}/{encoded(namespace)}"
        self.broken = f"{self.space}/%"
        """The node of the last evictions: no name is encoded like that."""
        self.above = [base[: len(base) - len(rest)] for rest in _rests(base)]
        """The folders that the namespace stands in, from the top."""
        self.parent = lru_cache(maxsize=4096)(self._parent)

    def _parent(self, name: str) -> str:
        """The node of the lock *name*."""
        return f"{self.space}/{encoded(name)}"


def encoded(text: str) -> str:
    """*text* as one part of a path; the empty one, which may be a namespace, as a lone ``%``."""
    part = quote(text, safe=READABLE) or "%"
    return part.replace(".", "%2E") if part in {".", ".."} else part


def decoded(part: str) -> str | None:
    """What `encoded` made into *part*; None if it did not."""
    text = unquote(part)
    return text if encoded(text) == part else None


def guid(token: str) -> str:
    """How the nodes of *token* begin; `part_of` reads it as it reads the token."""
    digest, part = hashlib.sha256(token.encode()), part_of(token)
    return (digest.hexdigest() if part is None else part.token(urlsafe_b64encode(digest.digest()).decode()))[:32]


def in_line(names: Sequence[str]) -> list[str]:
    """The nodes of attempts among *names*, in the order in which they came."""
    numbered = [(number, name) for name in names if (number := _number(name)) is not None]
    if not numbered:
        return []
    some, _ = numbered[0]  # all came within half of what can be counted, so any of them tells before from after
    return [name for _, name in sorted(numbered, key=lambda each: (each[0] - some + NUMBERS // 2) % NUMBERS)]


def _number(name: str) -> int | None:
    try:
        return int(name[33:]) if name[32:33] == "-" else None
    except ValueError:
        return None


def _rests(base: str) -> list[str]:
    """What follows each folder in *base*."""
    parts = base.strip("/").split("/")
    return ["".join(f"/{part}" for part in parts[count:]) for count in range(1, len(parts) + 1)]
