"""What the locks and leases of one client share in this process: the store, the keeper, who holds what, who waits.

`Client` is the public face above it. Each lock, lease, election and call refers to this, and never to the client.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from dibs.core.budgets import LONGEST_STEP, RETURN_BUDGET
from dibs.core.closing import Closing
from dibs.core.copying import NotCopied
from dibs.core.held import HeldLeases
from dibs.core.keeper import Keeper
from dibs.core.lease import Lease, leave
from dibs.core.open_blocks import OpenBlocks
from dibs.core.waiters import Waiters
from dibs.errors import LossReason
from dibs.holder import LockState, Record
from dibs.runtime import Runtime
from dibs.share import Share
from dibs.stores.record_store import record_store
from dibs.stores.store import Ask, Store


class Context(NotCopied):
    """The state of one client in this process. A forked child gets a fresh one of its own, in the same object."""

    _instead = "connect one in each process"

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self.store, self.runtime = store, runtime
        self.open_blocks = OpenBlocks()
        self.closing = Closing(self)
        self._fresh()
        runtime.after_fork(self._forked)
        lost = weakref.WeakMethod(self._lost)
        store.on_loss(lambda *loss: call(*loss) if (call := lost()) is not None else None)

    def _fresh(self) -> None:
        self.pid = self.runtime.pid()
        self.mutex = self.runtime.mutex()
        self.held = HeldLeases(self.mutex)
        self.keeper = Keeper(self.runtime, self.store, self.mutex, self.held.drop)
        self.waiters = Waiters(self.runtime, self.mutex)
        self.runtime.at_exit(self._at_exit)

    def check_usable(self, name: str = "", share: Share | None = None) -> None:
        """Refuse what cannot work from here: a closed client, another event loop, a lock we already hold."""
        self.runtime.enter()
        self.closing.refuse()
        self.held.refuse(name, share, self.runtime.current)

    def keep(self, lease: Lease) -> None:
        """From now on *lease* is held here; `Misuse` if the client was closed meanwhile: nobody would renew it."""
        self.held.add(lease._ref)
        self.keeper.keep(lease)
        self.closing.refuse()  # only now: closing gives up what is held, or we see that it has begun

    def forget(self, lease: Lease) -> bool:
        """From now on *lease* is not held here; tell whether it was."""
        known = self.held.drop(lease._ref)
        if known:
            self.keeper.drop()
        return known

    def undo(self, taken: Sequence[Lease]) -> None:
        """Give back what was granted for a block that was not begun."""
        for lease in taken:
            self.open_blocks.remove(lease)
        leave(taken)

    async def give_back(self, name: str, token: str, ttl: float, *, within: float = RETURN_BUDGET) -> None:
        """Give back whatever *token* may have, now, shielded from a cancel; else the keeper does it.

        This is how everything that was sent and not confirmed ends.
        """
        delivered = False
        try:
            delivered = await self.runtime.shielded(self._try_release(name, token, within))
        finally:
            if not delivered:
                self.keeper.give_back(name, token, ttl)

    async def stop(self, asks: Sequence[Ask], within: float) -> None:
        """Give back all that is held or was left to the keeper, and what *asks* may have, in *within* seconds."""
        await self.keeper.stop(self.held.leases(), asks, within)

    async def close(self) -> None:
        """Give back all that is held, and close the store; nothing if that was done, or is being done."""
        if self.closing.begun:
            return
        self.runtime.enter()  # from another event loop it would wait for what only the first can do
        await self.closing.close()

    async def show(self, name: str) -> LockState:
        """Tell all that the store knows of *name*."""
        self.check_usable()
        return await self.closing.do(self.store.show, name, LONGEST_STEP)

    async def record(self, name: str) -> Record | None:
        """Return what the last holder left under *name*, in a store that keeps records."""
        self.check_usable()
        return await self.closing.do(record_store(self.store).record, name, LONGEST_STEP)

    async def renew_now(self, lease: Lease) -> None:
        """Renew *lease* at once; the keeper's own next renewal comes as it would have."""
        await self.keeper.renew_now(lease)

    def give_back_later(self, name: str, token: str, ttl: float) -> None:
        """Give back whatever *token* may have, in the background."""
        self.keeper.give_back(name, token, ttl)

    def step_budget(self, ttl: float) -> float:
        """Seconds for one request about a lease of *ttl*."""
        return min(LONGEST_STEP, ttl / 2)

    def __repr__(self) -> str:
        return f"<Client of {self.store!r}{' closed' if self.closing.begun else ''}>"

    async def _try_release(self, name: str, token: str, within: float) -> bool:
        try:
            await self.store.release(name, token, within)
        except Exception:  # noqa: BLE001 - it must not hide why we leave; the keeper tries again and says what failed
            return False
        return True

    def _lost(self, name: str, token: str, reason: LossReason) -> None:
        """The store says that a grant is over."""
        lease = self.held.get(name, token)
        if lease is not None:
            lease.lost._happen(reason)

    def _forked(self) -> None:
        self.store.forked()
        self.closing.forked()
        self._fresh()

    def _at_exit(self) -> None:
        from dibs.runtime import run  # noqa: PLC0415 - only blocking runtimes call this

        run(self.close())
