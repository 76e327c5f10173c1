"""The transactions of etcd that a lock consists of, as JSON, and what their answers say. Numbers travel as text."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

from dibs.share import SHARED, Share
from dibs.stores.etcd.keys import EtcdKeys
from dibs.stores.etcd.port.gateway import EtcdJson

TOGETHER = 100
"""Operations in one transaction; etcd refuses more than 128."""

PAGE = 500
"""Keys in one answer, when there may be many."""


class Pair(NamedTuple):
    """A key and its value, as etcd has them."""

    key: str
    created: int
    """The revision at which it was created: the fence."""
    changed: int
    value: str
    lease: int
    """0 for a key without one, which ends only when somebody deletes it."""


class EtcdLeaseIds(NamedTuple):
    """The leases of etcd for one attempt."""

    holding: int
    """For when it holds the lock: as long as the ttl."""
    waiting: int
    """For when it waits: short, since one that died keeps those behind it waiting."""


# --- conditions ------------------------------------------------------------------------------------------------


def created_at(key: str, revision: int) -> EtcdJson:
    """Whether *key* is the one that was created at *revision*; 0: that there is none."""
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def unchanged(pair: Pair) -> EtcdJson:
    """Whether the key is as it was read."""
    return {"key": pair.key, "target": "MOD", "result": "EQUAL", "mod_revision": str(pair.changed)}


def nobody_after(keys: EtcdKeys, revision: int) -> EtcdJson:
    """Whether nobody has come since *revision*; some may have gone."""
    came = {"key": keys.first, "range_end": keys.end, "target": "CREATE", "result": "LESS"}
    return {**came, "create_revision": str(revision + 1)}


def alone(keys: EtcdKeys, share: Share) -> list[EtcdJson]:
    """Conditions under which it is the turn of whoever comes for *part*: nobody is there, or all who are share it."""
    if share == SHARED:
        return [_empty(keys.first, keys.share), _empty(keys.share_end, keys.end)]
    return [_empty(keys.first, keys.end)]


def _empty(begin: str, end: str) -> EtcdJson:
    """Whether nobody is there: each key would have to be one that is not there."""
    return {**created_at(begin, 0), "range_end": end}


# --- steps -----------------------------------------------------------------------------------------------------


def put(key: str, value: str, lease: int) -> EtcdJson:
    """Put a key under a lease."""
    return {"request_put": {"key": key, "value": value, "lease": str(lease)}}


def move(key: str, lease: int, value: str = "") -> EtcdJson:
    """Put a key under another lease; the revision of its creation stays as it is, and its value without another."""
    return put(key, value, lease) if value else {"request_put": {"key": key, "ignore_value": True, "lease": str(lease)}}


def get(key: str, *, keys_only: bool = False) -> EtcdJson:
    """Read one key, with or without its value."""
    return {"request_range": {"key": key, "keys_only": keys_only}}


def delete(key: str) -> EtcdJson:
    """Delete one key."""
    return {"request_delete_range": {"key": key}}


def _by_age(keys: EtcdKeys, order: str, limit: int) -> EtcdJson:
    return {"key": keys.first, "range_end": keys.end, "sort_order": order, "sort_target": "CREATE", "limit": str(limit)}


def first(keys: EtcdKeys) -> EtcdJson:
    """Read who holds the lock: whose key was created first."""
    return {"request_range": _by_age(keys, "ASCEND", 1)}


def last_two(keys: EtcdKeys) -> EtcdJson:
    """Read who came last, and who came before that."""
    return {"request_range": {**_by_age(keys, "DESCEND", 2), "keys_only": True}}


def everybody(keys: EtcdKeys, *, keys_only: bool = False) -> EtcdJson:
    """Read who holds the lock and who waits, in the order of their arrival."""
    return {"request_range": {**_by_age(keys, "ASCEND", 0), "keys_only": keys_only}}


# --- requests --------------------------------------------------------------------------------------------------


# Each that puts the key of an attempt does so only if there is no *mark*: see `doubt`.


def take(keys: EtcdKeys, own: str, mark: str, value: str, lease: int, *, again: bool) -> EtcdJson:
    """Take the lock if nobody has it and nobody waits; answer who has it and, if it is asked *again*, if that is us."""
    conditions = [_empty(keys.first, keys.end), created_at(mark, 0)]
    return txn(conditions, [put(own, value, lease)], [first(keys), *([get(own)] if again else [])])


def queue(keys: EtcdKeys, own: str, mark: str, value: str, leases: EtcdLeaseIds, *, called: bool) -> EtcdJson:
    """Take the lock if it is free, or else the last place in line, if we have none; answer who has the lock.

    Who was *called* has a place, and is likely to be the first: its key goes under the lease of who holds a lock, and
    its *value* says since when.
    """
    free = txn([_empty(keys.first, keys.end)], [put(own, value, leases.holding)], [put(own, value, leases.waiting)])
    place = [{"request_txn": free}, first(keys), last_two(keys)]
    again = [first(keys), get(own), *([_put_anew(own, value, leases.holding)] if called else [])]
    return txn([created_at(own, 0), created_at(mark, 0)], place, again)


def take_share(keys: EtcdKeys, own: str, mark: str, value: str, lease: int, conditions: Sequence[EtcdJson]) -> EtcdJson:
    """Take a part of the lock if the *conditions* hold and it is not ours yet; else answer who has it and who waits."""
    absent = [created_at(own, 0), created_at(mark, 0), *conditions]
    return txn(absent, [put(own, value, lease)], [first(keys), everybody(keys, keys_only=True)])


def queue_share(
    keys: EtcdKeys,
    own: str,
    mark: str,
    value: str,
    leases: EtcdLeaseIds,
    conditions: Sequence[EtcdJson],
    *,
    called: bool,
) -> EtcdJson:
    """Take the last place in line, if we have none; answer who has the lock, and all who are there.

    If the *conditions* hold, that place has its turn. Who was *called* has a place that has its turn by now.
    """
    turn = txn(conditions, [put(own, value, leases.holding)], [put(own, value, leases.waiting)])
    look = [first(keys), everybody(keys, keys_only=True)]
    again = [*look, *([_put_anew(own, value, leases.holding)] if called else [])]
    return txn([created_at(own, 0), created_at(mark, 0)], [{"request_txn": turn}, *look], again)


def _put_anew(key: str, value: str, lease: int) -> EtcdJson:
    """Put a key that is there under another lease."""
    there = {**created_at(key, 0), "result": "GREATER"}
    return {"request_txn": txn([there], [put(key, value, lease)], [])}


def leave_for_good(own: str, mark: str, lease: int) -> EtcdJson:
    """Leave, and let no ask take anything for it that still comes."""
    return txn([], [put(mark, "", lease), delete(own)], [])


def look(key: str, created: int, evicted: str) -> EtcdJson:
    """Read the key that was created at that revision, or, if it is not there, whether somebody broke that grant."""
    return {"request_txn": txn([created_at(key, created)], [get(key, keys_only=True)], [get(evicted)])}


def end(pair: Pair) -> EtcdJson:
    """Delete a key if it is still as it was read: another process may take it over just now."""
    return {"request_txn": txn([unchanged(pair)], [delete(pair.key)], [])}


def leave(keys: EtcdKeys, own: str, evicted: str, share: Share | None) -> EtcdJson:
    """Leave, from whichever place in line; answer who held the lock until now, and whether somebody broke it.

    Who held a *part* is told by all of the line.
    """
    held = first(keys) if share is None else everybody(keys, keys_only=True)
    return txn([], [held, get(evicted), delete(own)], [])


def before(keys: EtcdKeys, created: int) -> EtcdJson:
    """Read who is next before whoever came at *created*."""
    return {**_by_age(keys, "DESCEND", 1), "max_create_revision": str(created - 1), "keys_only": True}


def page(begin: str, end: str, revision: int) -> EtcdJson:
    """Read the next keys of a folder, as they were at *revision*; 0: as they are."""
    return {"key": begin, "range_end": end, "limit": str(PAGE), "revision": str(revision)}


def after(key: str) -> str:
    """Where the keys after *key* begin."""
    return b64encode(b64decode(key) + b"\0").decode()


def txn(compare: Sequence[EtcdJson], success: Sequence[EtcdJson], failure: Sequence[EtcdJson]) -> EtcdJson:
    """A transaction."""
    return {"compare": list(compare), "success": list(success), "failure": list(failure)}


# --- answers ---------------------------------------------------------------------------------------------------


def revision(answer: EtcdJson) -> int:
    """The revision at which it was answered; of a put, the one that it made."""
    return int(answer["header"]["revision"])


def term(answer: EtcdJson) -> int:
    """The term of the leader under which it was answered. What a majority had to agree to is of the latest."""
    return int(answer["header"]["raft_term"])


def pairs(answer: EtcdJson) -> list[Pair]:
    """What was read."""
    return [
        Pair(
            found["key"],
            int(found["create_revision"]),
            int(found["mod_revision"]),
            found.get("value", ""),
            int(found.get("lease", "0")),
        )
        for found in answer.get("kvs", ())
    ]


def read(answer: EtcdJson, place: int) -> list[Pair]:
    """What the step at *place* of a transaction has read; nothing if there was no such step."""
    steps = answer["responses"]
    return pairs(steps[place].get("response_range", {})) if place < len(steps) else []


def looked(answer: EtcdJson, place: int) -> tuple[bool, list[Pair]]:
    """Whether the key is there that the `look` at *place* was for, and what that has read."""
    told = answer["responses"][place]["response_txn"]
    return bool(told.get("succeeded")), read(told, 0)


def succeeded(answer: EtcdJson, place: int) -> bool:
    """Whether the condition of the transaction at *place* was true."""
    return bool(answer["responses"][place].get("response_txn", {}).get("succeeded"))


def deleted(answer: EtcdJson, place: int) -> bool:
    """Whether the step at *place* has deleted anything."""
    return "deleted" in answer["responses"][place].get("response_delete_range", {})
