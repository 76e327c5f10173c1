"""The end of a ``with`` block: however it ends, what it holds is given back, or left to the keeper."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from dibs._blocking.whole_try import whole_try
from dibs.runtime import run


class CoreBlock(Protocol):
    """What a block needs of its core."""

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None, /
    ) -> Any:
        """End the block."""

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came out of the end of the block: leave nothing that nobody gives back."""


class Block:
    """What can stand in a ``with`` statement."""

    __slots__ = ("_core",)

    _core: CoreBlock

    @whole_try
    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block, and give back what it holds.

        `LeaseLost` if it was lost before the end, unless the body raises something of its own.
        """
        try:
            run(self._core.__aexit__(kind, exc, trace))
        except BaseException as error:
            self._core._abandon(error)
            raise
