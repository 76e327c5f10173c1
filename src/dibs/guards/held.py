"""A lease as those guards see it that put its condition into a transaction of the same store."""

from __future__ import annotations

from typing import Protocol


class AnyLease(Protocol):
    """A lease of either colour."""

    @property
    def name(self) -> str:
        """What is locked."""

    @property
    def fence(self) -> int:
        """The fence of the grant."""

    def compare(self) -> object:
        """The condition."""
