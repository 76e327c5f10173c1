"""Looks at locks, and breaks them, whoever holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import StoreUnavailable
from dibs.holder import Holder, LockState
from dibs.part import part_of
from dibs.ports.zookeeper import Session
from dibs.ports.zookeeper_requests import No, Node, Request, children, delete, lasting, read, sure, together, write
from dibs.stores.line import inside
from dibs.stores.zookeeper_facts import broken, holder, last_fence, waiter
from dibs.stores.zookeeper_paths import Paths, decoded, in_line

MANY = 500
"""Requests that are sent at once."""


async def show(session: Session, paths: Paths, name: str, until: float) -> LockState:
    """All that the nodes of *name* tell."""
    parent = paths.parent(name)
    names, above, evictions = await _ask(session, [children(parent), read(parent), read(paths.broken)], until)
    line = in_line(names if isinstance(names, list) else [])
    found = await _ask(session, [read(f"{parent}/{each}") for each in line], until)
    there = [(entry, node) for entry, node in zip(line, found, strict=True) if isinstance(node, Node)]
    count = len(_inside([entry for entry, _ in there]))
    holding = tuple(holder(name, *each, above) for each in there[:count] if isinstance(above, Node))
    evicted = broken(evictions).of(name)
    fence = max(last_fence(above), evicted.fence if evicted else 0, *(each.fence for each in holding))
    sharing = holding if holding and holding[0].part else ()
    waiting = tuple(waiter(name, *each) for each in there[count:])
    return LockState(name, fence, next(iter(holding), None), waiting, evicted, sharing=sharing)


async def holders(session: Session, paths: Paths, prefix: str, until: float) -> list[Holder]:
    """Who is in front in each line, in the order of the names: three round trips for any number."""
    [parts] = await _ask(session, [children(paths.space)], until)
    names = [decoded(part) for part in parts] if isinstance(parts, list) else []
    wanted = sorted(name for name in names if name and name.startswith(prefix))
    parents = [paths.parent(name) for name in wanted]
    lines = await _ask(session, [children(path) for path in parents], until)
    fronts = [
        (name, path, entry)
        for name, path, names in zip(wanted, parents, lines, strict=True)
        for entry in _inside(in_line(names if isinstance(names, list) else []))
    ]
    requests = [read(path) for _, parent, entry in fronts for path in (parent, f"{parent}/{entry}")]
    found = await _ask(session, requests, until)
    return [
        holder(name, entry, node, parent)
        for (name, _, entry), parent, node in zip(fronts, found[::2], found[1::2], strict=True)
        if isinstance(parent, Node) and isinstance(node, Node)
    ]


async def evict(
    session: Session, paths: Paths, by: Holder, fence: int, reason: str, until: float, *, private: bool
) -> bool:
    """Delete the node of the holder that has *fence*, and write down who did it, in one transaction.

    No two nodes have the same path, so what is deleted is what was looked at. The fence is kept as a release keeps it:
    of several holders another may be broken next, and that of the newest would be forgotten.
    """
    parent = paths.parent(by.name)
    while True:
        names, node, above = await _ask(session, [children(parent), read(paths.broken), read(parent)], until)
        held = [f"{parent}/{entry}" for entry in _inside(in_line(names if isinstance(names, list) else []))]
        found = await _ask(session, [read(path) for path in held], until)
        fences = [each.fence if isinstance(each, Node) else None for each in found]
        if fence not in fences:
            return False
        evictions = broken(node)
        data = evictions.and_of(by.name, fence, reason, by)
        note = write(paths.broken, data, evictions.version) if node is not No.NODE else None
        noted = note or lasting(paths.broken, data, private=private)
        newer = isinstance(above, Node) and last_fence(above) < fence
        last = [write(parent, b"%d" % fence, above.version)] if newer else []
        [done] = await _ask(session, [together(delete(held[fences.index(fence)]), noted, *last)], until)
        if not any(isinstance(each, No | StoreUnavailable) for each in done):
            return True
        sure(done)  # else somebody was quicker: look again


def _inside(line: list[str]) -> list[str]:
    """Those in front who hold the name."""
    return line[: inside([part_of(entry) for entry in line])]


async def _ask(session: Session, requests: Sequence[Request], until: float) -> list[Any]:
    answers: list[Any] = []
    for begin in range(0, len(requests), MANY):
        answers += sure(await session.ask(until, *requests[begin : begin + MANY]))
    return answers
