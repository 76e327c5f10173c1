"""One moment up to which an operation may take; made once and passed down."""

from __future__ import annotations

import math
from collections.abc import Callable


class Deadline:
    """The end of one budget. Wake-ups never restart it.

    It can be brought forward while somebody waits for it, who then has to look at it every *look_every* seconds.
    """

    __slots__ = ("_at", "_now", "look_every")

    def __init__(self, now: Callable[[], float], timeout: float | None, *, look_every: float = math.inf) -> None:
        self._now = now
        self._at = math.inf if timeout is None else now() + timeout
        self.look_every = look_every

    def bring_forward(self) -> None:
        """Let it be now."""
        self._at = min(self._at, self._now())

    def left(self, grace: float = 0.0) -> float:
        """Seconds that are left, and *grace* more: 0 when that has passed, infinity if it never does."""
        return max(0.0, self._at + grace - self._now())

    def passed(self) -> bool:
        """Whether nothing is left."""
        return self._now() >= self._at
