"""Looks at locks, and breaks them, whoever holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.errors import StoreUnavailable
from dibs.holder import Holder, LockState
from dibs.ports.zookeeper import Session
from dibs.ports.zookeeper_requests import No, Node, Request, children, delete, lasting, read, sure, together, write
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
    nodes = [node for node in found if isinstance(node, Node)]
    first = holder(name, nodes[0], above) if nodes and isinstance(above, Node) else None
    evicted = broken(evictions).of(name)
    fence = first.fence if first else max(last_fence(above), evicted.fence if evicted else 0)
    return LockState(name, fence, first, tuple(waiter(name, node) for node in nodes[1:]), evicted)


async def holders(session: Session, paths: Paths, prefix: str, until: float) -> list[Holder]:
    """Who is first in each line, in the order of the names: three round trips for any number."""
    [parts] = await _ask(session, [children(paths.space)], until)
    names = [decoded(part) for part in parts] if isinstance(parts, list) else []
    wanted = sorted(name for name in names if name and name.startswith(prefix))
    parents = [paths.parent(name) for name in wanted]
    lines = await _ask(session, [children(path) for path in parents], until)
    heads = [
        (name, path, f"{path}/{line[0]}")
        for name, path, names in zip(wanted, parents, lines, strict=True)
        if (line := in_line(names if isinstance(names, list) else []))
    ]
    found = await _ask(session, [read(path) for _, *both in heads for path in both], until)
    pairs = zip(heads, found[::2], found[1::2], strict=True)
    return [
        holder(name, first, parent)
        for (name, *_), parent, first in pairs
        if isinstance(parent, Node) and isinstance(first, Node)
    ]


async def evict(
    session: Session, paths: Paths, by: Holder, fence: int, reason: str, until: float, *, private: bool
) -> bool:
    """Delete the first node in line, if it is the one with *fence*, and write down who did it, in one transaction.

    No two nodes have the same path, so what is deleted is what was looked at.
    """
    parent = paths.parent(by.name)
    while True:
        names, node = await _ask(session, [children(parent), read(paths.broken)], until)
        line = in_line(names if isinstance(names, list) else [])
        first = f"{parent}/{line[0]}" if line else parent
        [head] = await _ask(session, [read(first)], until)
        if not line or not isinstance(head, Node) or head.fence != fence:
            return False
        evictions = broken(node)
        data = evictions.and_of(by.name, fence, reason, by)
        note = write(paths.broken, data, evictions.version) if node is not No.NODE else None
        noted = note or lasting(paths.broken, data, private=private)
        [done] = await _ask(session, [together(delete(first), noted)], until)
        if not any(isinstance(each, No | StoreUnavailable) for each in done):
            return True
        sure(done)  # else somebody was quicker: look again


async def _ask(session: Session, requests: Sequence[Request], until: float) -> list[Any]:
    answers: list[Any] = []
    for begin in range(0, len(requests), MANY):
        answers += sure(await session.ask(until, *requests[begin : begin + MANY]))
    return answers
