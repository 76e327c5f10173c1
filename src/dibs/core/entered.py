"""Which lease belongs to which ``with lock:`` block, since a lock itself keeps no state."""

from __future__ import annotations

from collections.abc import Callable

from dibs.core.lease import Lease


class Entered:
    """The leases of the blocks that are open, by name and by who opened them."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[str, list[tuple[object, Lease]]] = {}

    def push(self, lease: Lease) -> None:
        """A block was entered with *lease*."""
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

    def drop(self, name: str, owner: object) -> list[Lease]:
        """Forget the blocks of *owner* on *name*, and return their leases."""
        blocks = self._blocks.get(name, [])
        dropped = [lease for known, lease in blocks if known is owner]
        blocks[:] = [block for block in blocks if block[0] is not owner]
        if not blocks:
            self._blocks.pop(name, None)
        return dropped
