"""The parts of names that one client holds: several for one name, unlike whole locks, of which it holds one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from dibs.core.lease import LeaseRef
from dibs.errors import Misuse
from dibs.part import SHARED, Part


class Parts:
    """The leases of shared locks and semaphores; what the program has dropped is not kept alive."""

    __slots__ = ("_mutex", "held")

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        self._mutex = mutex
        self.held: dict[str, dict[str, LeaseRef]] = {}
        """By name and token; empty as long as nothing but whole locks is held."""

    def add(self, ref: LeaseRef) -> None:
        """The lease of *ref* is held."""
        with self._mutex:
            self.held.setdefault(ref.name, {})[ref.token] = ref

    def drop(self, ref: LeaseRef) -> bool:
        """The lease of *ref* is not held any more; tell whether it was."""
        with self._mutex:
            same_name = self.held.get(ref.name, {})
            known = same_name.get(ref.token) is ref
            if known:
                del same_name[ref.token]
            if known and not same_name:
                del self.held[ref.name]
            return known

    def get(self, name: str, token: str) -> LeaseRef | None:
        """What has *token*."""
        return self.held.get(name, {}).get(token)

    def __iter__(self) -> Iterator[LeaseRef]:
        """All of them."""
        with self._mutex:
            return iter([ref for same_name in self.held.values() for ref in same_name.values()])

    def refuse(self, name: str, part: Part | None, owner: object) -> None:
        """Refuse an ask of *owner*, a task or thread, that would wait for itself.

        A semaphore may be asked for again: others may give its slots back.
        """
        if part is not None and part != SHARED:
            return
        for ref in list(self.held.get(name, {}).values()):
            lease = ref()
            if lease is not None and lease.held_by(owner):
                raise Misuse(
                    f"this task or thread already holds a part of {name!r} (fence {lease.fence}): waiting for it could "
                    "go on for ever, as whoever is next waits for that part; give it back first, or pass its lease on"
                )
