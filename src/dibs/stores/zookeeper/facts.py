"""What is written into nodes for people and for later: who made an attempt, the last fence, the last evictions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from dibs.holder import Eviction, Holder, Person, eviction_of, facts_of, signature
from dibs.share import share_of, shown_share
from dibs.stores.zookeeper.port.requests import Node

KEPT = 100
"""Evictions that one namespace remembers: of the last names, and of each name the last fences before the newest."""

FOREIGN = "not a lock of dibs: another program made the node, and its data says nothing we can read"

ENDLESS = "its node is persistent, so no session ends it; if nobody holds the lock, remove it with dibs evict"

MOST_DIGITS = 20
"""The digits of the highest fence: ZooKeeper counts in 64 bits."""


class Evictions(NamedTuple):
    """The last evictions of a namespace, by name: the newest last, and no more than `KEPT`."""

    data: bytes = b""
    version: int = -1
    """-1 if the node is not there."""
    written_at: float = 0.0

    def of(self, name: str) -> Eviction | None:
        """The last eviction of a holder of *name*."""
        return eviction_of(self._all().get(name))

    def includes(self, name: str, fence: int) -> bool:
        """Whether the holder of *name* with *fence* is among the last that were evicted."""
        return fence in self._fences(name)

    def and_of(self, name: str, fence: int, reason: str, by: Holder) -> bytes:
        """What the node says after *by* has evicted the holder of *name* with *fence*."""
        facts, before = self._all(), self._fences(name)
        facts.pop(name, None)
        facts[name] = {"fence": fence, "reason": reason, "by": signature(by)}
        facts[name] |= {"before": before[:KEPT]} if before else {}
        return _json(dict(list(facts.items())[-KEPT:]))

    def _fences(self, name: str) -> list[int]:
        """The evicted fences of *name*, the newest first. A holder that lost an earlier one may not have asked yet."""
        facts = self._all().get(name)
        before = facts.get("before") if facts else None
        return [facts["fence"], *(before if isinstance(before, list) else ())] if facts else []

    def _all(self) -> dict[str, dict[str, Any]]:
        """The evictions by name. The newest says no time: it happened when the node was written."""
        return {
            name: {"at": self.written_at, **facts}
            for name, facts in facts_of(self.data).items()
            if isinstance(facts, dict) and isinstance(facts.get("fence"), int)
        }


def evictions_in(node: object) -> Evictions:
    """The evictions that *node* says; none if it is not there."""
    return Evictions(node.data, node.version, node.written_at) if isinstance(node, Node) else Evictions()


def last_fence(parent: object) -> int:
    """The fence of the last holder that released the lock; 0 if there is none."""
    text = parent.data if isinstance(parent, Node) else b""
    return int(text) if text.isdigit() and len(text) <= MOST_DIGITS else 0


def moved(data: bytes, fence: int) -> bytes:
    """The *data* of a node that moved to another session: it keeps the fence that it had before."""
    return _json({**facts_of(data), "fence": fence})


def fence_of(node: Node) -> int:
    """The fence of an attempt: the zxid at which its node was first created, before it moved to another session."""
    kept = facts_of(node.data).get("fence")
    return kept if type(kept) is int and 0 < kept < node.fence else node.fence


def attempt(me: Holder) -> bytes:
    """The data of a new node: who attempts to take the lock."""
    return _json({"host": me.host, "pid": me.pid, "user": me.user, "note": me.note})


def holder(name: str, entry: str, node: Node, parent: Node) -> Holder:
    """The holder of *name* whose node is *entry*.

    An exclusive holder holds since the one before released the lock, or since its node was created. Of several
    holders, each one that had to wait writes to its own node when it gets its turn: the others come and go meanwhile.
    """
    since = max(node.made_at, parent.written_at) if share_of(entry) is None else node.written_at
    return _who(name, entry, node, fence_of(node), since)


def waiter(name: str, entry: str, node: Node) -> Holder:
    """The waiter for *name* whose node is *entry*."""
    return _who(name, entry, node, 0, node.made_at)


def _who(name: str, entry: str, node: Node, fence: int, since: float) -> Holder:
    who = Person.read(facts_of(node.data)) or Person("unknown", 0, "unknown", FOREIGN, 0.0)
    note = "; ".join(filter(None, (who.note, endless(node))))
    return Holder(name, fence, who.host, who.pid, who.user, note, since, None, shown_share(entry))


def endless(node: Node) -> str:
    """For a node that ends with no session: why it stays, and how to remove it. Empty for any other node."""
    return "" if node.owner else ENDLESS


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()
