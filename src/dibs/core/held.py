"""What one client holds: of each name the whole, once, or parts, of which it may have several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from dibs.core.lease import Lease, LeaseRef
from dibs.errors import Misuse
from dibs.share import SHARED, Share, share_of


class HeldLeases:
    """The leases of one client in this process; what the program has dropped is not kept alive."""

    __slots__ = ("_shares", "_whole")

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        self._whole: dict[str, LeaseRef] = {}
        self._shares = Shares(mutex)

    def add(self, ref: LeaseRef) -> None:
        """The lease of *ref* is held."""
        if share_of(ref.token) is None:
            self._whole[ref.name] = ref
        else:
            self._shares.add(ref)

    def drop(self, ref: LeaseRef) -> bool:
        """The lease of *ref* is not held any more, or nobody refers to it; tell whether it was known until now."""
        if self._whole.get(ref.name) is ref:
            return self._whole.pop(ref.name, None) is not None
        return bool(self._shares.held) and self._shares.drop(ref)

    def get(self, name: str, token: str) -> Lease | None:
        """The lease on *name* that has *token*."""
        ref = self._whole.get(name) if share_of(token) is None else self._shares.get(name, token)
        lease = ref() if ref is not None else None
        return lease if lease is not None and lease.token == token else None

    def leases(self) -> list[Lease]:
        """All that somebody refers to."""
        return [lease for ref in (*self._whole.values(), *self._shares) if (lease := ref()) is not None]

    def refuse(self, name: str, share: Share | None, current: Callable[[], object]) -> None:
        """Refuse an ask of the task or thread that *current* tells, if it would wait for itself."""
        ref = self._whole.get(name)
        lease = ref() if ref is not None else None
        if lease is not None and lease._held_by(current()):
            raise Misuse(
                f"this task or thread already holds {name!r} (fence {lease.fence}): waiting for it would never end; "
                "pass the lease on instead"
            )
        if self._shares.held:
            self._shares.refuse(name, share, current())


class Shares:
    """The leases of shared locks and semaphores."""

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

    def refuse(self, name: str, share: Share | None, owner: object) -> None:
        """Refuse an ask of *owner*, a task or thread, that would wait for itself.

        A semaphore may be asked for again: others may give its slots back.
        """
        if share is not None and share != SHARED:
            return
        for ref in list(self.held.get(name, {}).values()):
            lease = ref()
            if lease is not None and lease._held_by(owner):
                raise Misuse(
                    f"this task or thread already holds a part of {name!r} (fence {lease.fence}): waiting for it could "
                    "go on for ever, as whoever is next waits for that part; give it back first, or pass its lease on"
                )
