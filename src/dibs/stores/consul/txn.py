"""The operations of Consul's transactions, and the values of the keys of a lock. No I/O."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from dibs.holder import facts_of
from dibs.stores.consul.port.agent import Op

LOCK_FLAGS = 0x2DDCCBC058A50C18
"""The flags that Consul's own clients write on a key that is a lock, and look for before they take it. So ``consul
lock`` and dibs respect each other."""


def absent(key: str) -> Op:
    """Refuse if *key* exists."""
    return _kv("check-not-exists", key)


def unchanged(key: str, index: int) -> Op:
    """Refuse unless *key* was last written by the transaction *index*."""
    return _kv("check-index", key, Index=index)


def locked(key: str, session: str, value: bytes) -> Op:
    """Lock *key* for *session*; refuse if another session has locked it, or its lock-delay runs."""
    return _kv("lock", key, Session=session, Value=b64encode(value).decode(), Flags=LOCK_FLAGS)


def unlocked(key: str, session: str) -> Op:
    """Unlock *key*, which *session* has locked."""
    return _kv("unlock", key, Session=session)


def written(key: str, value: bytes) -> Op:
    """Write *key*."""
    return _kv("set", key, Value=b64encode(value).decode())


def deleted(key: str) -> Op:
    """Delete *key*, if it is there."""
    return _kv("delete", key)


def seen(prefix: str) -> Op:
    """Read all keys that begin with *prefix*."""
    return _kv("get-tree", prefix)


def packed(**facts: Any) -> bytes:
    """*facts* as the value of a key."""
    return json.dumps(facts, separators=(",", ":")).encode()


def unpacked(value: bytes) -> dict[str, Any]:
    """The facts in *value*; none if it is not one of ours."""
    facts = facts_of(value)
    return facts if isinstance(facts.get("token"), str) else {}


def seconds(facts: Mapping[str, Any], what: str) -> float:
    """The number of seconds that *facts* have as *what*; 0 if they have none."""
    found = facts.get(what)
    return float(found) if isinstance(found, int | float) and found >= 0 else 0.0


def _kv(verb: str, key: str, **more: Any) -> Op:
    return {"KV": {"Verb": verb, "Key": key, **more}}
