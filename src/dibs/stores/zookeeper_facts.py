"""What is written into nodes for people and for later: who made an attempt, the last fence, the last evictions."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from dibs.holder import Eviction, Holder
from dibs.part import part_of, shown_part
from dibs.ports.zookeeper_requests import Node

KEPT = 100
"""Evictions that are remembered in one namespace."""


class Broken(NamedTuple):
    """The last evictions of a namespace, by name: the newest last, and no more than `KEPT`."""

    data: bytes = b""
    version: int = -1
    """-1 if the node is not there."""
    written_at: float = 0.0

    def of(self, name: str) -> Eviction | None:
        """The last time somebody broke *name*."""
        facts = self._all().get(name)
        return Eviction(**facts) if facts else None

    def and_of(self, name: str, fence: int, reason: str, by: Holder) -> bytes:
        """The same, after *by* has broken *name*."""
        facts = self._all()
        facts.pop(name, None)
        facts[name] = {"fence": fence, "reason": reason, "by": f"{by.user} on {by.host} pid {by.pid}"}
        return _json(dict(list(facts.items())[-KEPT:]))

    def _all(self) -> dict[str, Any]:
        """An eviction learns its moment by being written: the newest has none yet."""
        return {name: {"at": self.written_at, **facts} for name, facts in _facts(self.data).items()}


def broken(node: object) -> Broken:
    """Read the evictions."""
    return Broken(node.data, node.version, node.written_at) if isinstance(node, Node) else Broken()


def last_fence(parent: object) -> int:
    """The fence of the last holder that gave back; 0 if there is none."""
    text = parent.data if isinstance(parent, Node) else b""
    return int(text) if text.isdigit() else 0


def attempt(me: Holder) -> bytes:
    """What stands in the node of an attempt."""
    return _json({"host": me.host, "pid": me.pid, "user": me.user, "note": me.note})


def holder(name: str, entry: str, node: Node, parent: Node) -> Holder:
    """Who holds *name* by the node *entry*: since the one before gave it back, or since it came.

    One of several writes to its node when it gets its turn after a wait: others come and go beside it.
    """
    since = max(node.made_at, parent.written_at) if part_of(entry) is None else node.written_at
    return _who(name, entry, node, node.fence, since)


def waiter(name: str, entry: str, node: Node) -> Holder:
    """Who waits for *name*."""
    return _who(name, entry, node, 0, node.made_at)


def _who(name: str, entry: str, node: Node, fence: int, since: float) -> Holder:
    facts = _facts(node.data)
    host, user, note = (str(facts.get(what, "")) for what in ("host", "user", "note"))
    return Holder(name, fence, host, int(facts.get("pid", 0)), user, note, since, None, shown_part(entry))


def _facts(data: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(data)
    except ValueError:  # somebody else's node
        return {}
    return facts if isinstance(facts, dict) else {}


def _json(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()
