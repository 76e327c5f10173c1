"""A guarded write in Consul, where the data is in Consul: a transaction that does nothing unless the lease still holds.

It needs no mark beside the data: Consul compares the key of the lock itself, in the same step as the write. Nothing is
sent here. Bodies and answers are those of ``PUT /v1/txn``, for whichever client you have.

    body = consul.guarded(lease, consul.put("app/primary", "db2"))
    consul.check(lease, httpx.put("http://localhost:8500/v1/txn", json=body).json())
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from dibs.errors import Misuse, StaleFence
from dibs.guards.held import AnyLease

Json = dict[str, Any]

MOST_STEPS = 63
"""Beside the condition: a transaction of Consul has at most 64 operations."""

_INDEX = re.compile(r"current modify index (\d+)")


def put(key: str, value: str | bytes) -> Json:
    """One write, as a step of a transaction."""
    data = value.encode() if isinstance(value, str) else value
    return {"KV": {"Verb": "set", "Key": key, "Value": b64encode(data).decode()}}


def guarded(lease: AnyLease, *steps: Json) -> list[Json]:
    """A transaction that does all *steps* if *lease* holds when Consul gets to it, and else none; then `check` says so.

    Conditions of your own may be among the steps. *lease* is one of a Consul store.
    """
    condition = lease.compare()
    if not (isinstance(condition, dict) and "KV" in condition):
        raise Misuse(f"the lease on {lease.name!r} is not one of Consul, so Consul cannot compare it; see dibs.guards")
    if len(steps) > MOST_STEPS:
        raise Misuse(f"{len(steps)} steps: Consul does at most {MOST_STEPS} in a transaction with a condition")
    return [condition, *steps]


def check(lease: AnyLease, answer: Mapping[str, Any]) -> None:
    """Raise `StaleFence` if *answer*, that of a `guarded` transaction, says that the lease was over: nothing was done.

    If only another step was refused, such as a condition of your own, it returns, and ``answer["Errors"]`` says which.
    """
    try:
        refused = {error["OpIndex"]: str(error["What"]) for error in answer["Errors"] or ()}
    except (KeyError, TypeError) as exc:
        raise Misuse(f"this is no answer to a transaction of Consul: {str(answer)[:200]}") from exc
    if 0 in refused:
        found = _INDEX.search(refused[0])  # none if nobody holds it
        raise StaleFence(lease.name, lease.fence, int(found[1]) if found else lease.fence)
