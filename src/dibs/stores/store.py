"""The one interface that every store implements: the steps of a lease's life, and two views of it.

Every step has three outcomes: it returns (*yes* or *no*), or it raises `StoreUnavailable` (it certainly did not
happen) or `OutcomeUnknown` (it may have). A store never turns an unknown into a no, or a failure into busy.

The rules that the core relies on, and `dibs.testing.contract` checks:

- A step ends within *within* seconds (plus 50 ms), whatever the server does.
- One end: the holder counts the ttl from just before it sent the request that was answered last, whether an ask or a
  renewal; and the store counts from when it carried out that request, or a later one.
- So `grant` is idempotent for its token: asked again with the same token it answers with the same fence, and the ttl
  counts from then. (An earlier ask may be carried out late, even after a later one was answered with busy, so the
  client cannot know how long ago its token was granted.)
- `renew` and `release` compare the token inside the store and never create or revive anything. Where an ask can be
  carried out long after it was sent, `renew` compares the fence too: the token may have been granted anew by then.
- `renew` never shortens what any client was promised: a lease that was handed over is kept by two clients, and each
  counts on its last answer. But no promise about a grant goes farther than `Claim.longest` from its request; where the
  clock of the store can be set back, `renew` brings an end that is farther away back to that.
- A token that `dibs.share.share_of` understands asks for a share of the name, and is granted beside others if their
  shares fit; `grant` raises `Misuse` if those are of another size. A store that declares that it cannot do this is
  never asked for a share.
- Times are the store's own; *ttl* is a length, never a moment.
- An ask that was cancelled, or was not answered, may still be carried out, also after the end of its connection: the
  kernel goes on sending, and a proxy may have it. The core then calls `release` with the same token, and the store
  makes sure that the ask takes nothing afterwards: it carries out the release after the ask, or leaves a mark for the
  token that ends by itself (`dibs.stores.doubt`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from dibs.errors import LossReason, NotSupported, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState
from dibs.share import Share, share_of
from dibs.stores.guarantees import Guarantees


class Ask(NamedTuple):
    """One attempt to take a lock. The same ask may be sent many times, by a waiter or after a lost answer."""

    name: str
    token: str
    ttl: float
    note: str
    queue: bool
    """Whether a refused ask takes a ticket, to be served in arrival order; `Store.release` gives it back."""

    @property
    def share(self) -> Share | None:
        """The share of the name that is asked for; None if it is the whole name."""
        return share_of(self.token)


class Grant(NamedTuple):
    """Yes: the lock is yours."""

    fence: int
    ttl: float
    """The length the store really gave; never shorter than what was asked for."""


class Busy(NamedTuple):
    """No: another client holds the lock, or is next in the queue."""

    holder: Holder | None
    retry_in: float
    """Seconds after which it may be free even if no hint comes: the remaining ttl of the holder."""
    why: str = ""
    """What keeps it closed when nobody holds it, as part of a sentence."""
    stuck: str = ""
    """Why what is in the way does not end by itself, and how to remove it; a waiter logs this once."""


class Claim(NamedTuple):
    """A grant as its owner names it to the store."""

    name: str
    token: str
    fence: int
    ttl: float
    longest: float = math.inf
    """The longest ttl that was ever promised for this grant, if it is known: a renewal may ask for less."""

    @property
    def share(self) -> Share | None:
        """The share of the name that was granted; None if it is the whole name."""
        return share_of(self.token)


class PartlyRenewed(StoreUnavailable):
    """Some claims were answered and some could not be asked for: for example, one node of a cluster is down.

    *answers* is what `Store.renew` would return, with an error in place of each answer that is missing.
    """

    def __init__(self, store: str, problem: str, answers: Sequence[LossReason | StoreUnavailable | None]) -> None:
        super().__init__(store, problem)
        self.answers = answers

    def __reduce__(self) -> tuple[type[PartlyRenewed], tuple[object, ...]]:
        return type(self), (self.store, self.problem, self.answers)


RenewAnswer = LossReason | StoreUnavailable | None
"""What a renewal makes of one claim: None if it holds, or why it does not, or why nobody knows."""


def settled(answers: Sequence[RenewAnswer]) -> list[LossReason | None]:
    """What `Store.renew` makes of the *answers* for the claims: it returns them, if there is no error among them.

    Otherwise it raises the worst error, or `PartlyRenewed` with all of them if some claims were answered. An error that
    leaves the outcome unknown is worse than one that says that nothing happened.
    """
    errors = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    if not errors:
        return [answer for answer in answers if not isinstance(answer, StoreUnavailable)]
    worst = next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
    if len(errors) == len(answers):
        raise worst
    raise PartlyRenewed(worst.store, worst.problem, answers)


class Store(ABC):
    """What can grant leases. One instance belongs to one client, one namespace and one runtime.

    A third-party store subclasses this, declares its `guarantees`, is registered under the entry point group
    ``dibs.stores`` by URL scheme, and runs `dibs.testing.contract`.
    """

    guarantees: ClassVar[Guarantees]
    shortest_ttl: ClassVar[float] = 0.05
    """The shortest ttl, in seconds, that the store can express; shorter is `Misuse` before any I/O."""
    longest_ttl: ClassVar[float] = 10 * 365 * 86_400.0
    """The longest ttl, in seconds, that the store can express; a longer one is `Misuse` before any I/O."""

    @abstractmethod
    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Give the lock to *ask* if it is free and *ask* is next; if not, say who has it."""

    @abstractmethod
    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Extend every claim that still holds by its ttl from now; answer `None` for it, or why it does not.

        Raises `PartlyRenewed` if only some could be asked for: the answers to the others still count.
        """

    @abstractmethod
    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back what *token* has, a grant or a ticket, and wake the next waiter.

        Returns `None` if the token held the lock until now, or why it did not.
        """

    @abstractmethod
    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Return when it is worth asking again, or after *within* seconds. It may return early; it never grants."""

    @abstractmethod
    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """End the grant with *fence*, if it is the one that holds; tell whether it was."""

    @abstractmethod
    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """List who holds the names that begin with *prefix*, in the order of their names."""

    @abstractmethod
    async def show(self, name: str, within: float) -> LockState:
        """Tell everything that the store knows of *name*."""

    def queue_at_once(self, name: str) -> bool:
        """Whether the first ask for *name* should take a ticket: the last one had to, and a ticket costs no request."""
        return False

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Make this process the holder: it is shown as such from now on, and its death may free the lock."""

    async def detach(self, claim: Claim, within: float) -> None:
        """Let only the ttl bound the lease from now on: this process may end and leave it to another."""

    def compare(self, claim: Claim) -> object:
        """A condition that this grant holds, for the caller's own transaction in the same store. It costs no I/O."""
        raise NotSupported(
            f"the store {self.guarantees.name} has no condition to put into a transaction of yours; a guard that "
            "compares the fence does the same for any resource: see dibs.guards"
        )

    def on_loss(self, call: Callable[[str, str, LossReason], None]) -> None:
        """Do *call*, with name, token and reason, when the store learns between two renewals that a grant is over.

        It may be called from any thread, and must not be called for a grant that was given back.
        """

    async def close(self) -> None:
        """Close the connections, and let every call of `wait` return.

        No step is called afterwards. But a step that took too long may end later, and open connections again: so this
        is called once more after that.
        """

    def inheritable(self) -> tuple[int, ...]:
        """File descriptors that keep a grant of this process alive in a child that inherits them."""
        return ()

    def forked(self) -> None:
        """Forget, without touching them, the parent's connections: this is a forked child."""
