"""A guarded write in etcd, where the data is in etcd: a transaction that changes nothing unless the lease still holds.

It needs no mark beside the data: etcd compares the key of the lock itself, in the same step as the write. Nothing is
sent here. Bodies and answers are those of the JSON gateway (``POST /v3/kv/txn``), for whichever client you have.

    body = etcd.guarded(lease, etcd.put("/app/primary", "db2"))
    etcd.check(lease, httpx.post("http://etcd1:2379/v3/kv/txn", json=body).json())
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from dibs.errors import Misuse, StaleFence
from dibs.guards.held import AnyLease

Json = dict[str, Any]


def put(key: str, value: str | bytes) -> Json:
    """One write, as a step of a transaction."""
    data = value.encode() if isinstance(value, str) else value
    return {"request_put": {"key": _base64(key.encode()), "value": _base64(data)}}


def guarded(lease: AnyLease, *steps: Json) -> Json:
    """A transaction that does all *steps* if *lease* holds when etcd gets to it, and else none; then `check` says so.

    Conditions of your own can be appended to its ``compare``. *lease* is one of an etcd store.
    """
    condition = lease.compare()
    if not (isinstance(condition, dict) and "create_revision" in condition):
        raise Misuse(f"the lease on {lease.name!r} is not one of etcd, so etcd cannot compare it; see dibs.guards")
    folder = b64decode(condition["key"]).rpartition(b"/")[0]
    first = {"sort_order": "ASCEND", "sort_target": "CREATE", "limit": "1", "keys_only": True}
    line = {"key": _base64(folder + b"/"), "range_end": _base64(folder + b"0"), **first}
    own = {"key": condition["key"], "keys_only": True}  # of those who share a lock, only one is the first
    return {
        "compare": [condition],
        "success": list(steps),
        "failure": [{"request_range": line}, {"request_range": own}],
    }


def check(lease: AnyLease, answer: Mapping[str, Any]) -> None:
    """Raise `StaleFence` if *answer*, that of a `guarded` transaction, says that nothing was done.

    If you appended conditions of your own, one of those may be why, although the lease holds: then it returns, and
    ``answer["succeeded"]`` is not there.
    """
    if answer.get("succeeded"):
        return
    try:
        holders, own = [step["response_range"].get("kvs", []) for step in answer["responses"]]
        current = int([*own, *holders, {"create_revision": answer["header"]["revision"]}][0]["create_revision"])
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        raise Misuse(f"this is no answer to a guarded transaction of etcd: {str(answer)[:200]}") from exc
    if current != lease.fence:
        raise StaleFence(lease.name, lease.fence, current)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
