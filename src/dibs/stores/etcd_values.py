"""The values of etcd's keys, as JSON in base64: who holds or waits, and who broke a lock."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, NamedTuple

from dibs.errors import LossReason
from dibs.holder import Eviction, Holder
from dibs.part import Part
from dibs.stores.etcd_keys import base64


class Broken(NamedTuple):
    """A lock that somebody broke, as its record says it."""

    token: str
    """Whose grant it was."""
    by_token: str
    """A token of whoever broke it: so an eviction that was sent twice is known by its first answer."""
    eviction: Eviction


def facts(who: Holder, since: float) -> str:
    """Who holds or waits. The time is by the clock of that machine: etcd tells nobody its own."""
    return _packed({"host": who.host, "pid": who.pid, "user": who.user, "note": who.note, "since": since})


def since(value: str) -> float:
    """Since when, by a value."""
    found = _unpacked(value).get("since", 0.0)
    return float(found) if isinstance(found, int | float) else 0.0


def holder(name: str, fence: int, value: str, expires_in: float | None, part: Part | None = None) -> Holder:
    """Who that is, and what of the name it has or wants."""
    told, shown = _unpacked(value), part.shown if part is not None else ""
    if not {"host", "pid", "user"} <= told.keys():
        note = "not a lock of dibs: another program put the key, and its value says nothing we can read"
        return Holder(name, fence, "unknown", 0, "unknown", note, 0.0, expires_in, shown)
    pid = told["pid"] if isinstance(told["pid"], int) else 0
    who = str(told["host"]), pid, str(told["user"]), str(told.get("note", ""))
    return Holder(name, fence, *who, since(value), expires_in, shown)


def broken(record: Broken) -> str:
    """The record of an eviction."""
    return _packed({**record._asdict(), "eviction": record.eviction._asdict()})


def read_broken(value: str) -> Broken | None:
    """The same, read; None if it is something else."""
    told = _unpacked(value)
    try:
        return Broken(told["token"], told["by_token"], Eviction(**told["eviction"]))
    except (KeyError, TypeError):
        return None


def why_not(record: str, token: str) -> LossReason:
    """Why *token* has nothing: somebody broke its lock, as *record* may say, or took its key away."""
    known = read_broken(record) if record else None
    return LossReason.EVICTED if known is not None and known.token == token else LossReason.TAKEN


def _packed(what: dict[str, Any]) -> str:
    return base64(json.dumps(what, separators=(",", ":")))


def _unpacked(value: str) -> dict[str, Any]:
    try:
        told = json.loads(b64decode(value))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
