"""The transactions of etcd for a lock, as JSON, and what their answers say. Numbers travel as text."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import NamedTuple

from dibs.share import SHARED, Share
from dibs.stores.etcd.keys import EtcdKeys
from dibs.stores.etcd.port.gateway import EtcdJson

TOGETHER = 100
"""The most operations in one transaction of ours; etcd refuses more than 128."""

PAGE = 500
"""Keys in one answer, where there may be many."""


class Pair(NamedTuple):
    """A key and its value, as they are in etcd."""

    key: str
    created: int
    """The revision at which it was created: the fence."""
    changed: int
    value: str
    lease: int
    """0 for a key without one, which ends only when it is deleted."""


class EtcdLeaseIds(NamedTuple):
    """The ids of the leases of etcd for one attempt."""

    holding: int
    """For its key when it holds the lock: as long as the ttl."""
    waiting: int
    """For its key while it waits: short, since a dead waiter keeps those behind it waiting."""


# --- conditions ------------------------------------------------------------------------------------------------


def created_at(key: str, revision: int) -> EtcdJson:
    """Whether *key* was created at *revision*; with 0, whether it is not there."""
    return {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}


def unchanged(pair: Pair) -> EtcdJson:
    """Whether the key is as it was read."""
    return {"key": pair.key, "target": "MOD", "result": "EQUAL", "mod_revision": str(pair.changed)}


def nobody_after(keys: EtcdKeys, revision: int) -> EtcdJson:
    """Whether no attempt has come since *revision*; some may have gone."""
    came = {"key": keys.first, "range_end": keys.end, "target": "CREATE", "result": "LESS"}
    return {**came, "create_revision": str(revision + 1)}


def alone(keys: EtcdKeys, share: Share) -> list[EtcdJson]:
    """Conditions under which an ask for *share* has its turn at once: no key is there, or only those of sharers."""
    if share == SHARED:
        return [_empty(keys.first, keys.share), _empty(keys.share_end, keys.end)]
    return [_empty(keys.first, keys.end)]


def _empty(begin: str, end: str) -> EtcdJson:
    """Whether there is no key from *begin* to *end*: the condition asks each key there not to exist."""
    return {**created_at(begin, 0), "range_end": end}


# --- steps -----------------------------------------------------------------------------------------------------


def put(key: str, value: str, lease: int) -> EtcdJson:
    """Put a key under a lease."""
    return {"request_put": {"key": key, "value": value, "lease": str(lease)}}


def move(key: str, lease: int, value: str = "") -> EtcdJson:
    """Put a key under another lease, with another *value* if there is one. The revision of its creation stays."""
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
    """Read the key that holds the lock: the one that was created first."""
    return {"request_range": _by_age(keys, "ASCEND", 1)}


def last_two(keys: EtcdKeys) -> EtcdJson:
    """Read the last key, and the one before it."""
    return {"request_range": {**_by_age(keys, "DESCEND", 2), "keys_only": True}}


def everybody(keys: EtcdKeys, *, keys_only: bool = False) -> EtcdJson:
    """Read all holders and waiters, in the order of their arrival."""
    return {"request_range": {**_by_age(keys, "ASCEND", 0), "keys_only": keys_only}}


# --- requests --------------------------------------------------------------------------------------------------


# Each request that puts the key of an attempt does so only if there is no *mark*: see `doubt`.


def take(keys: EtcdKeys, own: str, mark: str, value: str, lease: int, *, again: bool) -> EtcdJson:
    """Take the lock if it has no holder and no waiter; if not, read the holder and, if asked *again*, our own key."""
    conditions = [_empty(keys.first, keys.end), created_at(mark, 0)]
    return txn(conditions, [put(own, value, lease)], [first(keys), *([get(own)] if again else [])])


def queue(keys: EtcdKeys, own: str, mark: str, value: str, leases: EtcdLeaseIds, *, called: bool) -> EtcdJson:
    """Take the lock if it is free, or a ticket if we have none; read the holder.

    A waiter that was *called* has a ticket, and is likely to be the first: its key goes under the lease for holding,
    with a new *value*, which says since when.
    """
    free = txn([_empty(keys.first, keys.end)], [put(own, value, leases.holding)], [put(own, value, leases.waiting)])
    place = [{"request_txn": free}, first(keys), last_two(keys)]
    again = [first(keys), get(own), *([_put_anew(own, value, leases.holding)] if called else [])]
    return txn([created_at(own, 0), created_at(mark, 0)], place, again)


def take_share(keys: EtcdKeys, own: str, mark: str, value: str, lease: int, conditions: Sequence[EtcdJson]) -> EtcdJson:
    """Take a share if the *conditions* hold and it is not ours yet; if not, read the holder and the whole queue."""
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
    """Take a ticket if we have none; read the holder and the whole queue.

    If the *conditions* hold, the ticket has its turn. A waiter that was *called* has a ticket with its turn by now.
    """
    turn = txn(conditions, [put(own, value, leases.holding)], [put(own, value, leases.waiting)])
    look = [first(keys), everybody(keys, keys_only=True)]
    again = [*look, *([_put_anew(own, value, leases.holding)] if called else [])]
    return txn([created_at(own, 0), created_at(mark, 0)], [{"request_txn": turn}, *look], again)


def _put_anew(key: str, value: str, lease: int) -> EtcdJson:
    """Put a key again, under another lease, if it is there."""
    there = {**created_at(key, 0), "result": "GREATER"}
    return {"request_txn": txn([there], [put(key, value, lease)], [])}


def leave_for_good(own: str, mark: str, lease: int) -> EtcdJson:
    """Delete our key, and leave a mark, so that an ask that still arrives takes nothing."""
    return txn([], [put(mark, "", lease), delete(own)], [])


def look(key: str, created: int, evicted: str) -> EtcdJson:
    """Read *key* if it was created at the revision *created*; if not, read whether that grant was evicted."""
    return {"request_txn": txn([created_at(key, created)], [get(key, keys_only=True)], [get(evicted)])}


def end(pair: Pair) -> EtcdJson:
    """Delete a key if it is unchanged since it was read: another process may be taking it over."""
    return {"request_txn": txn([unchanged(pair)], [delete(pair.key)], [])}


def leave(keys: EtcdKeys, own: str, evicted: str, share: Share | None) -> EtcdJson:
    """Delete our key, whether it holds or waits; read who held the lock until now, and the eviction of our grant.

    For a *share* the whole queue is read: it takes all of it to say who held one.
    """
    held = first(keys) if share is None else everybody(keys, keys_only=True)
    return txn([], [held, get(evicted), delete(own)], [])


def before(keys: EtcdKeys, created: int) -> EtcdJson:
    """Read the key just before the one that was created at *created*."""
    return {**_by_age(keys, "DESCEND", 1), "max_create_revision": str(created - 1), "keys_only": True}


def page(begin: str, end: str, revision: int) -> EtcdJson:
    """Read the next keys of a folder, as they were at *revision*, or as they are if it is 0."""
    return {"key": begin, "range_end": end, "limit": str(PAGE), "revision": str(revision)}


def after(key: str) -> str:
    """Where the keys after *key* begin."""
    return b64encode(b64decode(key) + b"\0").decode()


def txn(compare: Sequence[EtcdJson], success: Sequence[EtcdJson], failure: Sequence[EtcdJson]) -> EtcdJson:
    """A transaction: *success* if all of *compare* hold, *failure* if not."""
    return {"compare": list(compare), "success": list(success), "failure": list(failure)}


# --- answers ---------------------------------------------------------------------------------------------------


def revision(answer: EtcdJson) -> int:
    """The revision of the store at this answer; of a put, the revision that it made."""
    return int(answer["header"]["revision"])


def term(answer: EtcdJson) -> int:
    """The term of the leader at this answer. An answer that takes a majority has the latest term."""
    return int(answer["header"]["raft_term"])


def pairs(answer: EtcdJson) -> list[Pair]:
    """The keys that a read has found."""
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


def read(answer: EtcdJson, index: int) -> list[Pair]:
    """What the step at *index* of a transaction has read; nothing if there was no such step."""
    steps = answer["responses"]
    return pairs(steps[index].get("response_range", {})) if index < len(steps) else []


def looked(answer: EtcdJson, index: int) -> tuple[bool, list[Pair]]:
    """Whether the key of the `look` at *index* is there, and what that has read."""
    told = answer["responses"][index]["response_txn"]
    return bool(told.get("succeeded")), read(told, 0)


def succeeded(answer: EtcdJson, index: int) -> bool:
    """Whether the condition of the transaction at *index* was true."""
    return bool(answer["responses"][index].get("response_txn", {}).get("succeeded"))


def deleted(answer: EtcdJson, index: int) -> bool:
    """Whether the step at *index* has deleted a key."""
    return "deleted" in answer["responses"][index].get("response_delete_range", {})
