"""How many session locks this process holds, and may hold: the whole server has one table for the locks of all."""

from __future__ import annotations

import weakref

from dibs.errors import NotSupported

HELD: dict[int, int] = {}
"""How many locks each client of this process holds."""


class LockLimit:
    """What one client adds to it."""

    def __init__(self) -> None:
        weakref.finalize(self, HELD.pop, id(self), None).atexit = False
        self.count(0)

    def count(self, held: int) -> None:
        """This client holds so many locks."""
        HELD[id(self)] = held

    def check(self, most: int) -> None:
        """Refuse one more, if the process has *most* of them."""
        held = sum(list(HELD.values()))
        if held >= most:
            raise NotSupported(
                f"this process holds {held} session locks, and more would endanger the table of locks that the whole "
                "server shares; take postgresql:// (lease rows) for many names, or raise ?max_locks= and the server's "
                "max_locks_per_transaction"
            )
