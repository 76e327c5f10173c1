"""Which nodes a lock has: a parent named after it, and under that a node for each attempt to take it.

``/dibs/<namespace>/<name>/<guid>-<number>``. In namespaces and names, characters that ZooKeeper refuses in a path, or
that would split it, are percent-encoded, and so is ``%``: distinct names never share a node, and each name can be read
back. The server adds the number, which says who came first. The guid says whose node it is, so a client finds its node
even if the request to create it was never answered. The guid is a hash of the token, so the list of nodes shows no
token. For a share of the name the guid begins as the token does: the list alone tells whose turn it
is. It is as long as any other guid: an older dibs, which knows no shares, takes the node for that of an exclusive ask.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from dibs.share import share_of

READABLE = "!\"#$&'()*+,:;<=>?@[\\]^`{|}"
"""Characters that are not encoded, besides letters, digits and ``_.-~``."""

NUMBERS = 2**32
"""The server counts in 32 bits with a sign, and wraps around."""


class Paths:
    """The nodes of one namespace."""

    def __init__(self, base: str, namespace: str) -> None:
        self.space = f"{base}/{encoded(namespace)}"
        self.evictions = f"{self.space}/%"
        """The node of the last evictions: no lock's name is encoded like that."""
        self.above = [base[: len(base) - len(rest)] for rest in _rests(base)]
        """The nodes above the namespace's own, from the top."""
        self.parent = lru_cache(maxsize=4096)(self._parent)

    def _parent(self, name: str) -> str:
        """The node of the lock *name*."""
        return f"{self.space}/{encoded(name)}"


def encoded(text: str) -> str:
    """*text* as one component of a path; the empty text, which may be a namespace, as a lone ``%``."""
    component = quote(text, safe=READABLE) or "%"
    return component.replace(".", "%2E") if component in {".", ".."} else component


def decoded(component: str) -> str | None:
    """The text that `encoded` makes into *component*; None if there is none."""
    text = unquote(component)
    return text if encoded(text) == component else None


def guid(token: str) -> str:
    """How the nodes of *token* begin; `share_of` reads the share from it as from the token."""
    digest, share = hashlib.sha256(token.encode()), share_of(token)
    return (digest.hexdigest() if share is None else share.token(urlsafe_b64encode(digest.digest()).decode()))[:32]


def queue_order(names: Sequence[str]) -> list[str]:
    """The nodes of attempts among *names*, in the order in which they came."""
    numbered = [(number, name) for name in names if (number := _number(name)) is not None]
    if not numbered:
        return []
    some, _ = numbered[0]  # all lie within half of the range, so the distance from any of them gives the order
    return [name for _, name in sorted(numbered, key=lambda each: (each[0] - some + NUMBERS // 2) % NUMBERS)]


def _number(name: str) -> int | None:
    try:
        return int(name[33:]) if name[32:33] == "-" else None
    except ValueError:
        return None


def _rests(base: str) -> list[str]:
    """For each node on the path *base*, from the top: the rest of the path below it."""
    components = base.strip("/").split("/")
    return ["".join(f"/{each}" for each in components[count:]) for count in range(1, len(components) + 1)]
