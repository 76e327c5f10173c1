"""What the error replies of a Redis server mean: certainly not done, and why; or not known."""

from __future__ import annotations

from typing import Any

from dibs.errors import OutcomeUnknown, StoreUnavailable

NOT_DONE = {
    "MOVED": "another node of the cluster keeps this lock; connect with redis+cluster://, or wait until it has settled",
    "ASK": "the cluster is moving this lock; connect with redis+cluster://, or wait until it has moved",
    "TRYAGAIN": "the cluster is moving this lock from one node to another",
    "CROSSSLOT": "the keys of this lock are in different slots of the cluster, which is a fault of dibs",
    "CLUSTERDOWN": "the cluster does not serve this lock at the moment",
    "READONLY": "this server is a replica; its master is somewhere else",
    "LOADING": "the server is starting and still loads its data",
    "MASTERDOWN": "this server is a replica that lost its master",
    "NOREPLICAS": "the server has fewer replicas than it wants before it accepts a write (min-replicas-to-write)",
    "BUSY": "the server is held up by a script of somebody else (SCRIPT KILL ends it)",
    "OOM": "the server's memory is full (maxmemory), so it gives out no new locks; those that are held are kept",
    "MISCONF": "the server accepts no writes because it cannot save its data",
    "NOAUTH": "the server wants a password; put it into the URL",
    "WRONGPASS": "the server refuses this user or password",
    "NOPERM": "this user may not do what locking needs: run scripts (EVAL, EVALSHA) on these keys",
    "DENIED": "the server is in protected mode and refuses connections from other hosts",
    "WRONGTYPE": "a key of this lock holds something else, of another program; delete or rename it",
    "NOSCRIPT": "the server lost our script twice in a row",
    "EXECABORT": "the server gave up a transaction",
}
"""First word of the error reply to a sentence. The server sends each of these before it does anything."""


def refused(store: str, reply: Any) -> StoreUnavailable:
    """The error for a request that was answered by an error."""
    text = str(reply)
    code = text.partition(" ")[0]
    if code in NOT_DONE:
        return StoreUnavailable(store, f"{NOT_DONE[code]} ({text})")
    if "unknown command" in text or "max number of clients" in text:
        return StoreUnavailable(store, f"the server answered: {text}")
    return OutcomeUnknown(store, f"the server answered: {text}")
