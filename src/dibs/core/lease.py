"""One grant: who proves it, how long it is valid, and how it ends. All state of a lock lives here.

A lease is held until it is given up (released, detached) or lost; each of these is final.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from dibs.core import handover
from dibs.core.copying import NotCopied
from dibs.core.loss import Loss, LossHost
from dibs.errors import LeaseLost, LossReason, Misuse, StoreUnavailable
from dibs.log import logger
from dibs.stores.store import Claim

if TYPE_CHECKING:
    from dibs.core.closing import Closing
    from dibs.runtime import Interrupt
    from dibs.stores.store import Store


class LeaseHost(LossHost, Protocol):
    """What a lease needs of the client that holds it."""

    @property
    def store(self) -> Store:
        """Where it was granted."""

    @property
    def closing(self) -> Closing:
        """Whether the client may still do something, and what it is doing."""

    @property
    def pid(self) -> int:
        """The process that holds it."""

    def step_budget(self, ttl: float) -> float:
        """Seconds for one request about a lease of *ttl*."""

    def forget(self, lease: Lease) -> bool:
        """From now on *lease* is not held here; tell whether it was."""

    async def renew_now(self, lease: Lease) -> None:
        """Renew *lease* at once."""

    async def give_back(self, name: str, token: str, ttl: float, *, within: float = ...) -> None:
        """Give back whatever *token* may have, now."""

    def give_back_later(self, name: str, token: str, ttl: float) -> None:
        """Give back whatever *token* may have, in the background."""


class LeaseRef(weakref.ref["Lease"]):
    """What client and keeper know a lease by, also when the program has dropped it."""

    __slots__ = ("name", "token")

    name: str
    token: str


class Lease(NotCopied):
    """One grant of a lock, as `Lock.acquire` returns it.

    Use it as a context manager, or call `release` when the work is done. It may be handed to other threads or
    tasks of this process; to another process with `to_str`.
    """

    __slots__ = (
        "__weakref__",
        "_failures",
        "_given_up",
        "_handed_over",
        "_host",
        "_interrupt",
        "_on_lost",
        "_owner",
        "_pid",
        "_ref",
        "_undelivered",
        "fence",
        "lost",
        "name",
        "note",
        "token",
        "ttl",
    )

    _instead = "hand the lease over with to_str() and client.resume()"

    name: str
    """What is locked."""
    token: str
    """Proves ownership to the store. A secret."""
    fence: int
    """What the resource checks: higher for every later grant of the name."""
    ttl: float
    """The length of the lease in seconds; each renewal extends it by so much."""
    note: str
    """The note it was acquired with, shown to whoever finds the lock taken."""
    lost: Loss
    """Whether the lease was lost, as a flag: ``if lease.lost``, ``lease.lost.wait(1)``."""

    def __init__(
        self, host: LeaseHost, claim: Claim, sent_at: float, note: str, max_hold: float | None, on_lost: str
    ) -> None:
        self._host = host
        self.name, self.token, self.fence, self.ttl, _ = claim
        self.note = note
        self.lost = Loss(host, sent_at, claim.ttl, max_hold)
        self._failures = 0  # renewals in a row that did not get through; the keeper's
        self._ref = LeaseRef(self)  # what client and keeper know us by: a dropped lease is not kept alive
        self._ref.name, self._ref.token = self.name, self.token
        self._owner: object = host.runtime.current()
        self._pid = host.pid
        self._on_lost = on_lost
        self._interrupt: Interrupt | None = None
        self._given_up = ""
        self._handed_over = False  # whether its text was given out: another process may count on the same grant
        self._undelivered = False

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost; None as long as it was not."""
        return self.lost._reason

    def expires_in(self) -> float:
        """Seconds for which the lease is still valid if no renewal succeeds; 0 when it is over."""
        return max(0.0, self.lost._deadline - self._host.runtime.now()) if self.lost._can_happen else 0.0

    def check(self) -> None:
        """Raise `LeaseLost` if the lease was lost, `Misuse` if it was given up. Costs no I/O.

        A process can be paused right after it: only a guard that compares the fence is exact.
        """
        self._refuse_other_process()
        self._raise_if_lost()
        if self._given_up:
            raise Misuse(f"the lease on {self.name!r} (fence {self.fence}) was {self._given_up}; acquire again")

    async def renew(self) -> None:
        """Extend the lease now, for example before a long step; else the keeper does it in time.

        Raises `LeaseLost`, or `StoreUnavailable` while the lease is still valid and the keeper goes on trying.
        """
        self.check()
        await self._host.closing.do(self._host.renew_now, self)
        self._raise_if_lost()

    async def release(self) -> None:
        """Give the lock back. Doing it again does nothing.

        Raises `LeaseLost` if the lease had been lost, and `StoreUnavailable` if the store could not be told: the
        keeper then goes on telling it until the lease's end, and you may call again.
        """
        self._refuse_other_process()
        closing = self._host.closing
        self._is_to_be_told()
        try:
            closing.join(self)  # before it is settled: closing gives back what is not, and waits for who does it
            if self.lost._settle():
                await self._deliver(again=False)
            elif self._undelivered and not self.lost:
                await self._deliver(again=True)
            elif self.lost:
                self._give_back_lost()
                self._raise_if_lost()
        finally:
            if closing.ends(self):
                await closing.finish()

    async def detach(self) -> str:
        """Stop keeping the lease here and return `to_str`: from now on it lasts for its ttl, or until resumed.

        This process may end without freeing the lock. Whoever gets the text can `Client.resume` it.
        """
        self.check()
        await self._host.closing.do(self._host.store.detach, self._claim, self._host.step_budget(self.ttl))
        self.check()
        self.lost._settle()
        self._given_up = "detached"
        self._host.forget(self)
        return self.to_str()

    def compare(self) -> Any:
        """Return the condition that this lease holds, for a transaction of your own in the same store. Costs no I/O.

        The store then checks it in the very step that writes, which no pause can come between. ZooKeeper, etcd and
        Consul have such conditions, each in the shape of its transactions; `NotSupported` from the others.
        """
        self.check()
        return self._host.store.compare(self._claim)

    def to_str(self) -> str:
        """Return the lease as text for another process, which gets it with `Client.resume`.

        The text proves ownership: treat it as a secret. This process goes on keeping the lease; `detach` ends that.
        """
        self._handed_over = True
        return handover.to_text(self._claim, self.note)

    async def __aenter__(self) -> Self:
        """Let a loss cancel the body from now on (async code, unless the lock has ``on_lost="flag"``)."""
        self.check()
        self._arm()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back; say `LeaseLost` if it was lost, unless the body raises something of its own."""
        interrupted = self._disarm(exc)
        if isinstance(exc, GeneratorExit):  # the coroutine is being closed: nothing can be awaited any more
            self._leave()
            return
        try:
            await self.release()
        except LeaseLost as lost:
            if exc is None or interrupted:
                raise
            exc.add_note(str(lost))
        except Misuse as error:  # a forked child leaves the parent's block
            if exc is None:
                raise
            exc.add_note(str(error))
        except StoreUnavailable as error:
            self._tell(exc, f"its release is retried in the background: {error}")

    def __repr__(self) -> str:
        state = self.lost._reason or self._given_up or f"held, expires_in={self.expires_in():.3f}"
        return f"<Lease {self.name!r} fence={self.fence} {state}>"

    # --- for the client and the keeper ---------------------------------------------------------------------

    @property
    def _claim(self) -> Claim:
        """The lease as the store knows it."""
        return Claim(self.name, self.token, self.fence, self.ttl)

    def _held_by(self, owner: object) -> bool:
        """Whether *owner*, a task or thread, acquired it and it is still held."""
        return self._owner is owner and self.lost._can_happen

    def _end(self, how: str) -> bool:
        """Give it up, and leave it to the caller to tell the store; False if it was over, or is of a parent process."""
        if self._pid != self._host.runtime.pid() or not self.lost._settle():
            return False
        self._given_up = how
        self._host.forget(self)
        return True

    def _leave(self) -> None:
        """Give the lock back in the background, where nothing can be awaited or no time is to be lost."""
        closing, this = self._host.closing, object()
        self._is_to_be_told()
        try:
            closing.join(this)  # else closing could come between: the lease is not held any more, and not left yet
            if (self._end("released") or self._undelivered) and self._pid == self._host.pid:
                self._host.give_back_later(self.name, self.token, self.ttl)
                self._undelivered = False
        finally:
            closing.ends(this)

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when its block was about to end: give it back all the same."""
        if not isinstance(error, Misuse):
            self._leave()

    async def _give_up(self, within: float) -> None:
        """Give the lock back within so many seconds, shielded from a cancel; what is left to do is the keeper's."""
        await self._host.closing.give_back(self._give_up_now, within)

    async def _give_up_now(self, within: float) -> None:
        self._is_to_be_told()
        if self._end("released"):
            await self._host.give_back(self.name, self.token, self.ttl, within=within)
            self._undelivered = False

    def _arm(self) -> None:
        """Let a loss cancel the current task, where the runtime can and the lock asks for it."""
        if self._on_lost == "cancel" and self._interrupt is None:
            self._interrupt = self._host.runtime.interrupt()
            if self._interrupt is not None:
                self.lost._when_over(self._fire)
                self.lost._watch()

    def _fire(self) -> None:
        if self.lost and self._interrupt is not None:
            self._interrupt.fire()

    def _disarm(self, exc: BaseException | None) -> bool:
        """A loss cancels nothing any more; tell whether *exc* is such a cancel."""
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is None:
            return False
        self.lost._forget(self._fire)
        return interrupt.absorb(exc)

    def _give_back_lost(self) -> None:
        """Tell the store once: it may count the lease as held for the margin, and a late ask may be on its way."""
        self._host.forget(self)
        if not self._given_up and not self._handed_over:
            self._given_up = "given back after its loss"
            self._host.give_back_later(self.name, self.token, self.ttl)

    def _is_to_be_told(self) -> None:
        """The store has to hear that it ends. Say so before it is settled: Ctrl-C may come right behind that."""
        if self.lost._is_open:
            self._undelivered = True

    async def _deliver(self, *, again: bool) -> None:
        host = self._host
        try:  # from here on Ctrl-C gives the lock back, too
            if not again:
                self._given_up = "released"
                host.forget(self)
            reason = await host.store.release(self.name, self.token, host.step_budget(self.ttl))
        except (StoreUnavailable, GeneratorExit):  # the latter: the coroutine is being closed, and cannot await
            host.give_back_later(self.name, self.token, self.ttl)
            host.closing.refuse()
            raise
        except BaseException:
            await host.give_back(self.name, self.token, self.ttl)
            raise
        self._undelivered = False
        if reason is not None and not again and not host.closing.begun:  # else closing has given it back
            self.lost._found(reason)
            self._raise_if_lost()

    def _raise_if_lost(self) -> None:
        reason = self.lost._reason
        if reason is not None:
            raise LeaseLost(self.name, self.fence, reason)

    def _refuse_other_process(self) -> None:
        if self._pid != self._host.runtime.pid():
            raise Misuse(
                f"the lease on {self.name!r} (fence {self.fence}) belongs to process {self._pid}, which this one was "
                "forked from; hand a lease over with to_str() and client.resume()"
            )

    def _tell(self, exc: BaseException | None, text: str) -> None:
        """Say *text* in a note to *exc*, or in the log where there is none."""
        if exc is not None:
            exc.add_note(f"the lock {self.name!r} was left, and {text}")
        else:
            logger().warning("the lock %r was left, and %s", self.name, text)


def leave(taken: Sequence[Lease]) -> None:
    """Give back what a call was granted and its caller did not get, because of Ctrl-C."""
    for lease in reversed(taken):
        lease._leave()
