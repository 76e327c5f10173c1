"""What a store can do beyond locks if it keeps records: data that a holder leaves under a name for later holders.

Two rules are added to those of `dibs.stores.store`, and `dibs.testing.contract` checks them as well:

- Only the holder of a name writes its record: token and fence are compared in the step that writes.
- The step that grants looks for the record itself, so a name is never granted beside a record.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from dibs.errors import LossReason, NotSupported
from dibs.holder import Record
from dibs.ports.db.session import Session
from dibs.stores.guarantees import Ability
from dibs.stores.store import Ask, Busy, Claim, Grant, Store

LONGEST_RECORD = 256 * 1024
"""The most bytes that a record may have: a store of locks is no place for files."""


class RecordStore(Store):
    """A store that keeps records. All others declare `Ability.RECORDS` in `Guarantees.cannot`."""

    @abstractmethod
    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """Do what `grant` does, unless the name has a record of a grant after the fence *after*: answer with that."""

    @abstractmethod
    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Write *data* as the record of the name for *keep* seconds, and go on holding it; or say why it is not held.

        Asked again for what is already written, it answers as before.
        """

    @abstractmethod
    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Do what `remember` and `release` do, in one step. What it wrote is there when it returns, and stays."""

    async def finish_on(self, conn: Session, claim: Claim, data: bytes, keep: float) -> LossReason | None:
        """Do what `finish` does, in the transaction of *conn*, a connection of the caller to the store's database."""
        raise NotSupported(
            f"the store {self.guarantees.name} is not in the database of your connection, so nothing can be committed "
            "with it; take postgresql:// or sqlite:///path, in the same database as the data"
        )

    @abstractmethod
    async def record(self, name: str, within: float) -> Record | None:
        """The record of *name*; None if it has none."""

    @abstractmethod
    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """The records of names that begin with *prefix*: the latest *most* of them, the latest first."""

    @abstractmethod
    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Remove the record of *name* if it was written under *fence*; tell whether it was."""

    @abstractmethod
    async def time(self, name: str, within: float) -> float:
        """The unix time by the clock of the server that keeps *name*: it timestamps the records."""


def record_store(store: Store) -> RecordStore:
    """Return *store* if it keeps records; if not, `NotSupported` with its reason, before anything is sent."""
    why = store.guarantees.cannot.get(Ability.RECORDS)
    if why is None and isinstance(store, RecordStore):
        return store
    if why is None:
        why = f"it has to declare that in {type(store).__name__}.guarantees"
    raise NotSupported(f"the store {store.guarantees.name} keeps no records: {why}")


def latest(records: Iterable[Record], most: int) -> list[Record]:
    """The *most* latest records, the latest first."""
    return sorted(records, key=lambda record: (record.at, record.fence), reverse=True)[:most]
