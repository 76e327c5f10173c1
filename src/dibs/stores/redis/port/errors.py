"""What the error replies of a Redis server mean: certainly not done, and why; or not known."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    "BUSY": "the server is held up by a script of another program (SCRIPT KILL ends it)",
    "OOM": "the server's memory is full (maxmemory), so it gives out no new locks; those that are held are kept",
    "MISCONF": "the server accepts no writes because it cannot save its data",
    "NOAUTH": "the server wants a password; put it into the URL",
    "WRONGPASS": "the server refuses this user or password",
    "NOPERM": "this user may not do all that dibs needs; grant it what the page of this store in docs/stores/ names",
    "DENIED": "the server is in protected mode and refuses connections from other hosts",
    "WRONGTYPE": "a key of this lock holds data of another kind, from another program; delete or rename it{keys}",
    "NOSCRIPT": "the server lost our script twice in a row",
    "EXECABORT": "the server gave up a transaction",
    "UNKNOWN": "this server lacks a command that dibs needs, or renamed it (rename-command); give it back its own name",
}
"""First word of the error reply to a sentence. The server sends each of these before it does anything."""

_IN_A_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")
"""Where Redis 6 puts the first word of an error that occurred in a script."""

_OTHER_WORDS = {
    "The user executing the script": "NOPERM",  # up to Redis 7.0
    "ommand called from": "UNKNOWN",  # … script: a command that the server does not know
}
"""Errors without a code of their own. Our scripts write nothing that counts before the refused command."""


def code_of(reply: Any) -> str:
    """The first word of an error reply, wherever it stands."""
    text = str(reply)
    for words, code in _OTHER_WORDS.items():
        if words in text:
            return code
    hidden = _IN_A_SCRIPT.search(text)
    return hidden[1] if hidden else text.partition(" ")[0]


KINDS = {"line": "zset", "ends": "zset", "tickets": "hash", "parts": "hash", "node": "hash"}
"""What TYPE says of our keys, by what they end with; all others are strings."""


def refused(store: str, reply: Any, keys: Sequence[bytes] = ()) -> StoreUnavailable:
    """The error for a request that was answered by an error; *keys* are those of the script."""
    text = str(reply)
    code = code_of(reply)
    if code in NOT_DONE:
        return StoreUnavailable(store, f"{NOT_DONE[code].format(keys=_with_kinds(keys))} ({text})")
    if "unknown command" in text or "max number of clients" in text:
        return StoreUnavailable(store, f"the server answered: {text}")
    return OutcomeUnknown(store, f"the server answered: {text}")


def _with_kinds(keys: Sequence[bytes]) -> str:
    """The keys, and what each has to be: the server does not say which one it was."""
    names = [key.decode("utf-8", "replace") for key in keys]
    told = ", ".join(f"{name!r} ({KINDS.get(name.rpartition(':')[2], 'string')})" for name in names)
    return f". TYPE tells which: {told}" if told else ""
