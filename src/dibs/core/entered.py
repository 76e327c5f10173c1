"""Which lease belongs to which ``with lock:`` block, since a lock itself keeps no state."""

from __future__ import annotations

from collections.abc import Callable

from dibs.core.lease import Lease
from dibs.part import part_of


class Entered:
    """The leases of the blocks that are open, by name and by who opened them."""

    __slots__ = ("_blocks", "_parts")

    def __init__(self) -> None:
        self._blocks: dict[str, list[tuple[object, Lease]]] = {}
        self._parts: dict[tuple[str, object], Lease] = {}  # one for each owner; threads come and go here at once

    def push(self, lease: Lease) -> None:
        """A block was entered with *lease*."""
        if part_of(lease.token) is not None:
            self._parts[lease.name, lease.owner] = lease
            return
        self._blocks.setdefault(lease.name, []).append((lease.owner, lease))

    def pop(self, name: str, current: Callable[[], object]) -> Lease | None:
        """A block on *name* is left by whom *current* tells: its innermost one, else (a fixture may be left by another
        task than entered it) the last that was entered."""
        blocks = self._blocks.get(name)
        if not blocks:
            return None
        index = -1
        if len(blocks) > 1 and blocks[index][0] is not (owner := current()):
            index = next((i for i in reversed(range(len(blocks))) if blocks[i][0] is owner), -1)
        lease = blocks.pop(index)[1]
        if not blocks:
            self._blocks.pop(name, None)
        return lease

    def pop_part(self, name: str, owner: object) -> Lease | None:
        """The same for a block with a part of *name*."""
        lease = self._parts.pop((name, owner), None)
        if lease is None:
            other = next((key for key in list(self._parts) if key[0] == name), None)
            lease = self._parts.pop(other, None) if other is not None else None
        return lease

    def has_part(self, name: str, owner: object) -> bool:
        """Whether *owner* is in a block with a part of *name*."""
        return (name, owner) in self._parts

    def drop(self, name: str, owner: object) -> list[Lease]:
        """Forget the blocks of *owner* on *name*, and return their leases."""
        blocks = self._blocks.get(name, [])
        dropped = [lease for known, lease in blocks if known is owner]
        blocks[:] = [block for block in blocks if block[0] is not owner]
        if not blocks:
            self._blocks.pop(name, None)
        part = self._parts.pop((name, owner), None)
        return dropped if part is None else [*dropped, part]
