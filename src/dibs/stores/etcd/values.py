"""The values of etcd's keys, as JSON in base64: who holds or waits, and who was evicted."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, NamedTuple

from dibs.errors import LossReason
from dibs.holder import Eviction, Holder, Person, eviction_of, facts_of, moment
from dibs.share import Share
from dibs.stores.etcd.keys import base64
from dibs.stores.etcd.requests import Pair

FOREIGN = "not a lock of dibs: another program put the key, and its value says nothing we can read"

ENDLESS = "its key is under no lease of etcd, so nothing ends it; if nobody holds the lock, remove it with dibs evict"


class Evicted(NamedTuple):
    """The record of an eviction: which grant was ended, by which token, and why."""

    token: str
    """The token of the grant that was ended."""
    by_token: str
    """A token of the evicting client, which recognizes its own eviction if it was sent twice."""
    eviction: Eviction


def facts(who: Holder, since: float) -> str:
    """The value of a holder or waiter. The time is by the clock of its machine: etcd tells no time."""
    return _packed({"host": who.host, "pid": who.pid, "user": who.user, "note": who.note, "since": since})


def since(value: str) -> float:
    """Since when the holder or waiter in *value* holds or waits: unix time."""
    return moment(_unpacked(value).get("since"))


def is_ours(value: str) -> bool:
    """Whether *value* is that of a holder or waiter of ours."""
    return Person.read(_unpacked(value)) is not None


def holder(name: str, fence: int, pair: Pair, expires_in: float | None, share: Share | None = None) -> Holder:
    """The holder of, or waiter for, *name* and *share*, read from its key and value."""
    who = Person.read(_unpacked(pair.value)) or Person("unknown", 0, "unknown", FOREIGN, 0.0)
    note = who.note if pair.lease else "; ".join(filter(None, (who.note, ENDLESS)))
    return Holder(name, fence, who.host, who.pid, who.user, note, who.since, expires_in, share.shown if share else "")


def evicted(record: Evicted) -> str:
    """Return *record* as the value of a key."""
    return _packed({**record._asdict(), "eviction": record.eviction._asdict()})


def read_evicted(value: str) -> Evicted | None:
    """Read what `evicted` wrote; None if *value* is something else."""
    told = _unpacked(value)
    token, by_token, eviction = told.get("token"), told.get("by_token"), eviction_of(told.get("eviction"))
    ours = isinstance(token, str) and isinstance(by_token, str)
    return Evicted(str(token), str(by_token), eviction) if ours and eviction is not None else None


def why_not(record: str, token: str) -> LossReason:
    """Why *token* lost its lock: its holder was evicted, if *record* says so, or the key was deleted."""
    known = read_evicted(record) if record else None
    return LossReason.EVICTED if known is not None and known.token == token else LossReason.TAKEN


def _packed(what: dict[str, Any]) -> str:
    return base64(json.dumps(what, separators=(",", ":")))


def _unpacked(value: str) -> dict[str, Any]:
    return facts_of(b64decode(value))
