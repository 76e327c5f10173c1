"""The one interface that every store implements: the steps of a lease's life, and two views of it.

Every step has three outcomes: it returns (*yes* or *no*), or it raises `StoreUnavailable` (it certainly did not
happen) or `OutcomeUnknown` (it may have). A store never turns an unknown into a no, or a failure into busy.

The rules that the core relies on, and `dibs.testing.contract` checks:

- A step ends within *within* seconds (plus 50 ms), whatever the server does.
- `grant` is idempotent for its token: asked again with the same token it answers with the same fence, and the ttl
  counts from then. (An earlier ask may be carried out late, after it was answered with busy: whoever then asks again
  cannot know how long ago it was granted.)
- `renew` and `release` compare the token inside the store and never create or revive anything. Where an ask can be
  carried out long after it was sent, `renew` compares the fence too: the token may have been granted anew by then.
- `renew` never shortens: a lease that was handed over is kept by two, and each counts on what it was told.
- A token that `dibs.part.part_of` understands asks for a part of the name, and is granted beside others as long as
  their parts fit; `grant` raises `Misuse` if those have parts of another size. A store that declares that it cannot is
  never asked for one.
- Times are the store's own; *ttl* is a length, never a moment.
- A record is written by whoever holds the name, and by nobody else: token and fence are compared in the step that
  writes. Whether there is one is decided in the step that grants, so that a name is never granted beside a record.
- A step that was cancelled may still happen; the core then calls `release` with the same token, and the store
  carries that out after the cancelled step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, NamedTuple

from dibs.errors import LossReason, NotSupported, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, Record
from dibs.ports.caller import Session
from dibs.stores.guarantees import Ability, Guarantees

LONGEST_RECORD = 256 * 1024
"""Bytes that a record may have: a store of locks is no place for files."""


class Ask(NamedTuple):
    """One attempt to take a lock. The same ask may be sent many times, by a waiter or after a lost answer."""

    name: str
    token: str
    ttl: float
    note: str
    queue: bool
    """Whether a refused ask takes a ticket, to be served in arrival order; `Store.release` gives it back."""


class Grant(NamedTuple):
    """Yes: the lock is yours."""

    fence: int
    ttl: float
    """The length the store really gave; never shorter than what was asked for."""


class Busy(NamedTuple):
    """No: somebody else holds it, or is next in line."""

    holder: Holder | None
    retry_in: float
    """After so many seconds it may be free even if no hint comes: the holder's remaining ttl."""
    why: str = ""
    """What keeps it closed when nobody holds it, as part of a sentence."""


class Claim(NamedTuple):
    """A grant as its owner names it to the store."""

    name: str
    token: str
    fence: int
    ttl: float


class PartlyRenewed(StoreUnavailable):
    """Some of the claims were answered and some could not be asked for: one node of a cluster is down.

    *answers* are those of `Store.renew`, with an error in the place of each that is missing.
    """

    def __init__(self, store: str, problem: str, answers: Sequence[LossReason | StoreUnavailable | None]) -> None:
        super().__init__(store, problem)
        self.answers = answers

    def __reduce__(self) -> tuple[type[PartlyRenewed], tuple[object, ...]]:
        return type(self), (self.store, self.problem, self.answers)


def settled(answers: Sequence[LossReason | StoreUnavailable | None]) -> list[LossReason | None]:
    """What `Store.renew` makes of the *answers* for each claim: them; or the error, if none came; or both.

    An answer that is not known counts for more than one that certainly was not given.
    """
    errors = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    if not errors:
        return [answer for answer in answers if not isinstance(answer, StoreUnavailable)]
    worst = next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
    if len(errors) == len(answers):
        raise worst
    raise PartlyRenewed(worst.store, worst.problem, answers)


def latest(records: Iterable[Record], most: int) -> list[Record]:
    """The *most* of them that were written last, the last first."""
    return sorted(records, key=lambda record: (record.at, record.fence), reverse=True)[:most]


class Store(ABC):
    """What can grant leases. One instance belongs to one client, one namespace and one runtime.

    A third-party store subclasses this, declares its `guarantees`, is registered under the entry point group
    ``dibs.stores`` by URL scheme, and runs `dibs.testing.contract`.
    """

    guarantees: ClassVar[Guarantees]
    shortest_ttl: ClassVar[float] = 0.05
    """The shortest ttl, in seconds, that the store can express; shorter is `Misuse` before any I/O."""

    @abstractmethod
    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Give the lock to *ask* if it is free and *ask* is next, else say who has it."""

    @abstractmethod
    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Extend every claim that still holds by its ttl from now; answer `None` for it, or why it does not.

        Raises `PartlyRenewed` if only some could be asked for, so that the others do not share their fate.
        """

    @abstractmethod
    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Give back whatever *token* has, a grant or a ticket, and wake the next in line.

        Returns `None` if the token held the lock until now, else why it did not.
        """

    @abstractmethod
    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Return when it is worth asking again, or after *within* seconds. It may return early; it never grants."""

    @abstractmethod
    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Break the grant with *fence*, if it is the one that holds; tell whether it was."""

    @abstractmethod
    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """List who holds the names that begin with *prefix*, in the order of their names."""

    @abstractmethod
    async def show(self, name: str, within: float) -> LockState:
        """Tell all the store knows of *name*."""

    # --- records: a store that has none says so in `guarantees.cannot`, and leaves these as they are ---------------

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """Do what `grant` does, unless the name has a record of a grant after the fence *after*: answer with that."""
        raise self._no_records()

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write *data* as the record of the name for *keep* seconds, and go on holding it; or say why it is not held.

        Asked again for what is already written, it answers as before.
        """
        raise self._no_records()

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Do what `remember` and `release` do, in one step. What it wrote is there when it returns, and stays."""
        raise self._no_records()

    async def finish_on(self, conn: Session, claim: Claim, data: bytes, keep: float) -> LossReason | None:
        """Do what `finish` does in the transaction that *conn* is in, a connection of the caller's to our database."""
        raise NotSupported(
            f"the store {self.guarantees.name} is not in the database of your connection, so nothing can be committed "
            "with it; take postgresql:// or sqlite:///path, in the same database as the data"
        )

    async def record(self, name: str, within: float) -> Record | None:
        """The record of *name*."""
        raise self._no_records()

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """The records of names that begin with *prefix*: the latest *most* of them, the latest first."""
        raise self._no_records()

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Remove the record that was written under *fence*, if it is the one there; tell whether it was."""
        raise self._no_records()

    async def time(self, name: str, within: float) -> float:
        """What time it is where *name* is kept: unix time. Whoever keeps records tells it, for they are of a time."""
        raise self._no_records()

    def _no_records(self) -> NotSupported:
        why = self.guarantees.cannot.get(Ability.RECORDS, f"it has to declare that in {type(self).__name__}.guarantees")
        return NotSupported(f"the store {self.guarantees.name} keeps no records: {why}")

    async def reseed(self, floor: int, within: float) -> None:
        """Let all nodes vote from now on, and give out no fence that is not above *floor*."""
        raise NotSupported(
            f"the store {self.guarantees.name} has no nodes that lost their memory and wait to be told the highest "
            "fence; only a redlock has"
        )

    def crowded(self, name: str) -> bool:
        """Whether the first ask for *name* should take a ticket: the last one had to, and a ticket costs no request."""
        return False

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """From now on this process is the holder: it is shown as such, and its death may free the lock."""

    async def detach(self, claim: Claim, within: float) -> None:
        """From now on only the ttl bounds the lease: this process may end and leave it to another."""

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
        """Let go of connections. No step is called afterwards."""

    def inheritable(self) -> tuple[int, ...]:
        """File descriptors that keep a grant of this process alive in a child that inherits them."""
        return ()

    def forked(self) -> None:
        """Forget, without touching them, the parent's connections: this is a forked child."""
