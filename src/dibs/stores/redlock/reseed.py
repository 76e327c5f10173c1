"""Tells the nodes of a Redlock the highest fence, after a majority of them lost its memory: ``dibs reseed`` in code.

It is an operator's act on the nodes, not a step of a client, so no client has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import Misuse, NotSupported
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.redlock.store import RedlockStore
from dibs.stores.registry import open_client, open_store

PATIENCE = 5.0
"""Seconds for which a node may take to answer."""


def reseed(nodes: str | Sequence[Any], floor: int) -> None:
    """Let all *nodes* vote from now on, and give out no fence that is not above *floor*.

    *nodes* are named as in `dibs.connect`: a ``redlock://`` URL, or a list of URLs or clients. *floor* is the highest
    fence that any guard has seen. `StoreUnavailable` unless all nodes answer: those that were told vote already, so
    say it again. A client that held a lock until then may still believe that it does, beside the next holder: only a
    guard that checks the fence tells them apart. `NotSupported` for another store, `Misuse` for an impossible floor.
    """
    if isinstance(floor, bool) or not isinstance(floor, int) or floor < 1:
        raise Misuse(f"floor={floor!r}: it is the highest fence that any guard has seen, a positive whole number")
    runtime = ThreadRuntime()
    store = open_store(nodes, "", runtime) if isinstance(nodes, str) else open_client(nodes, "", runtime)
    try:
        if not isinstance(store, RedlockStore):
            raise NotSupported(
                f"the store {store.guarantees.name} has no nodes that lost their memory and wait to be told the "
                "highest fence; only a redlock has"
            )
        run(store.reseed(floor, PATIENCE))
    finally:
        run(store.close())
