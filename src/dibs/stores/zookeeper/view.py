"""Looks at locks, and evicts their holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import StoreUnavailable
from dibs.holder import Holder, LockState
from dibs.share import share_of
from dibs.stores.queue import inside
from dibs.stores.zookeeper.facts import evictions_in, fence_of, holder, last_fence, waiter
from dibs.stores.zookeeper.paths import Paths, decoded, queue_order
from dibs.stores.zookeeper.port.requests import (
    No,
    Node,
    Request,
    children,
    delete,
    lasting,
    read,
    sure,
    together,
    write,
)
from dibs.stores.zookeeper.port.session import ZooKeeperSession

MANY = 500
"""The most requests that are sent at once."""


async def show(session: ZooKeeperSession, paths: Paths, name: str, until: float) -> LockState:
    """What the nodes of *name* tell: holders, waiters, the last eviction, the last fence."""
    parent = paths.parent(name)
    names, above, evictions = await _ask(session, [children(parent), read(parent), read(paths.evictions)], until)
    queue = queue_order(names if isinstance(names, list) else [])
    found = await _ask(session, [read(f"{parent}/{each}") for each in queue], until)
    there = [(entry, node) for entry, node in zip(queue, found, strict=True) if isinstance(node, Node)]
    count = len(_inside([entry for entry, _ in there]))
    holding = tuple(holder(name, *each, above) for each in there[:count] if isinstance(above, Node))
    evicted = evictions_in(evictions).of(name)
    fence = max(last_fence(above), evicted.fence if evicted else 0, *(each.fence for each in holding))
    sharing = holding if holding and holding[0].share else ()
    waiting = tuple(waiter(name, *each) for each in there[count:])
    return LockState(name, fence, next(iter(holding), None), waiting, evicted, sharing=sharing)


async def holders(session: ZooKeeperSession, paths: Paths, prefix: str, until: float) -> list[Holder]:
    """All holders of names that begin with *prefix*, in the order of the names: three round trips for any number."""
    [found] = await _ask(session, [children(paths.space)], until)
    names = [decoded(each) for each in found] if isinstance(found, list) else []
    wanted = sorted(name for name in names if name and name.startswith(prefix))
    parents = [paths.parent(name) for name in wanted]
    queues = await _ask(session, [children(path) for path in parents], until)
    fronts = [
        (name, path, entry)
        for name, path, names in zip(wanted, parents, queues, strict=True)
        for entry in _inside(queue_order(names if isinstance(names, list) else []))
    ]
    requests = [read(path) for _, parent, entry in fronts for path in (parent, f"{parent}/{entry}")]
    found = await _ask(session, requests, until)
    return [
        holder(name, entry, node, parent)
        for (name, _, entry), parent, node in zip(fronts, found[::2], found[1::2], strict=True)
        if isinstance(parent, Node) and isinstance(node, Node)
    ]


async def evict(
    session: ZooKeeperSession, paths: Paths, by: Holder, fence: int, reason: str, until: float, *, private: bool
) -> bool:
    """Delete the node of the holder that has *fence*, and write down who evicted it, in one transaction.

    No two nodes have the same path, so the node that is deleted is the one that was looked at. The last fence is kept
    as a release keeps it: of several holders another may be evicted next, and the highest fence would be forgotten.
    """
    parent = paths.parent(by.name)
    while True:
        names, node, above = await _ask(session, [children(parent), read(paths.evictions), read(parent)], until)
        held = [f"{parent}/{entry}" for entry in _inside(queue_order(names if isinstance(names, list) else []))]
        found = await _ask(session, [read(path) for path in held], until)
        fences = [fence_of(each) if isinstance(each, Node) else None for each in found]
        if fence not in fences:
            return False
        evictions = evictions_in(node)
        data = evictions.and_of(by.name, fence, reason, by)
        note = write(paths.evictions, data, evictions.version) if node is not No.NODE else None
        noted = note or lasting(paths.evictions, data, private=private)
        newer = isinstance(above, Node) and last_fence(above) < fence
        last = [write(parent, b"%d" % fence, above.version)] if newer else []
        [done] = await _ask(session, [together(delete(held[fences.index(fence)]), noted, *last)], until)
        if not any(isinstance(each, No | StoreUnavailable) for each in done):
            return True
        sure(done)  # if nothing failed for good, another client was quicker: look again


def _inside(queue: list[str]) -> list[str]:
    """The entries at the front of *queue* that hold the lock."""
    return queue[: inside([share_of(entry) for entry in queue])]


async def _ask(session: ZooKeeperSession, requests: Sequence[Request], until: float) -> list[Any]:
    answers: list[Any] = []
    for begin in range(0, len(requests), MANY):
        answers += sure(await session.ask(until, *requests[begin : begin + MANY]))
    return answers
