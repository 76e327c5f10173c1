"""Which lease belongs to which ``with lock:`` block, since a lock itself keeps no state."""

from __future__ import annotations

from contextlib import suppress

from dibs.core.lease import Lease
from dibs.share import share_of


class OpenBlocks:
    """The leases of the blocks that are open, by name and by the task or thread that opened them.

    Threads come and go here at once: each changes only what is its own.
    """

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, object], tuple[Lease, ...]] = {}

    def push(self, lease: Lease) -> None:
        """A block was entered with *lease*."""
        key = lease.name, lease._owner
        self._blocks[key] = (*self._blocks.get(key, ()), lease)

    def find(self, name: str, owner: object) -> Lease | None:
        """The lease of the block on *name* that *owner* is about to leave: its innermost one, else (a fixture may be
        left by another task than entered it) the last that was entered."""
        blocks = self._blocks.get((name, owner))
        if blocks is None:
            key = next((key for key in reversed(list(self._blocks)) if key[0] == name), None)
            blocks = self._blocks.get(key) if key is not None else None
        return blocks[-1] if blocks else None

    def remove(self, lease: Lease) -> None:
        """The block of *lease* was left."""
        key = lease.name, lease._owner
        blocks = self._blocks.get(key, ())
        if blocks[:-1]:
            self._blocks[key] = tuple(each for each in blocks if each is not lease)
        elif blocks and blocks[0] is lease:
            with suppress(KeyError):
                del self._blocks[key]

    def has_share(self, name: str, owner: object) -> bool:
        """Whether *owner* is in a block with a part of *name*."""
        return any(share_of(lease.token) is not None for lease in self._blocks.get((name, owner), ()))

    def drop(self, name: str, owner: object) -> tuple[Lease, ...]:
        """Forget the blocks of *owner* on *name*, and return their leases."""
        return self._blocks.pop((name, owner), ())
