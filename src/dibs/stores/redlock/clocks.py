"""What the clocks of the nodes show, and when each node was last heard. No I/O.

The time by these clocks is what fences are proposed from. Nothing that is right depends on it: it spares the second
round, and makes the fence rise even if nodes forget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dibs.stores.redlock.members import Member

SILENCE = 2.0
"""Seconds after which a node that was not heard is asked whether it still votes."""


class Clocks:
    """The clocks of *count* nodes, as one client knows them."""

    __slots__ = ("_ahead_us", "_count", "_heard_at", "_listened_at", "_now")

    def __init__(self, count: int, now: Callable[[], float]) -> None:
        self._count, self._now = count, now
        self._ahead_us: dict[int, float] = {}  # node to its clock minus ours
        self._heard_at: dict[int, float] = {}
        self._listened_at = 0.0

    def middle_us(self) -> int:
        """The time, by the clock that is neither among the slowest nor among the fastest."""
        ahead = sorted(self._ahead_us.values())
        return int(self._now() * 1e6 + (ahead[len(ahead) // 2] if ahead else 0.0))

    def heard(self, clocks: Iterable[tuple[int, int]]) -> None:
        """Note what the clocks show of nodes that have just answered."""
        now = self._now()
        for node, shown_us in clocks:
            self._ahead_us[node] = shown_us - now * 1e6
            self._heard_at[node] = now

    def saw(self, seen: Sequence[Member | None]) -> None:
        """Note that all nodes were asked, and some answered."""
        self.heard((node, member.now_us) for node, member in enumerate(seen) if member is not None)

    def is_one_silent(self) -> bool:
        """Whether some node was not heard for `SILENCE`, and should be asked what became of it.

        A client that wins with the first answers of a majority hears nothing of a node that always answers a little
        later, nor of one that lost its memory.
        """
        now = self._now()
        if now < self._listened_at + SILENCE / 2:
            return False
        self._listened_at = now
        return any(self._heard_at.get(node, 0.0) < now - SILENCE for node in range(self._count))
