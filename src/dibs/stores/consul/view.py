"""What Consul knows of one name, read in one step: who holds it, who waits, and the last eviction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from dibs.holder import Eviction, Holder, LockState, Person, eviction_of
from dibs.runtime.clock import wall_clock
from dibs.stores.consul.keys import ConsulKeys
from dibs.stores.consul.port.agent import Entry
from dibs.stores.consul.txn import unpacked


class ConsulView(NamedTuple):
    """The keys of one name, as they were at one moment."""

    held: Entry | None
    """The key of the lock. It may exist without a session: clients of other programs leave it like that."""
    last: Entry | None
    waits: Entry | None
    evicted: Entry | None
    tickets: tuple[Entry, ...]
    """The waiters, in the order of arrival."""

    @classmethod
    def of(cls, keys: ConsulKeys, found: Mapping[str, Entry], tickets: Iterable[Entry] = ()) -> Self:
        """The view of one name, from the keys *found* and its *tickets*."""
        held, last, waits, evicted = map(found.get, (keys.held, keys.last, keys.waits, keys.evicted))
        return cls(held, last, waits, evicted, tuple(tickets))

    @property
    def is_free(self) -> bool:
        """Whether the lock has no holder."""
        return self.held is None or not self.held.session

    @property
    def fence(self) -> int:
        """The last fence given out: the index that wrote the last grant, even if that is over."""
        return self.last.modified if self.last is not None else 0

    @property
    def token(self) -> str:
        """The token that holds the lock; empty if none does, or if it is not one of ours."""
        return unpacked(self.held.value).get("token", "") if self.held is not None and self.held.session else ""

    def held_by(self, token: str) -> Entry | None:
        """The key of the lock, if *token* holds it."""
        return self.held if self.token == token else None

    def ahead_of(self, token: str) -> Sequence[Entry]:
        """The tickets before that of *token*; all of them, if it has none."""
        for index, ticket in enumerate(self.tickets):
            if ticket.key.rpartition("/")[2] == token:
                return self.tickets[:index]
        return self.tickets

    def ticket_of(self, token: str) -> int:
        """The index of the ticket of *token*; 0 if it has none."""
        return next((ticket.modified for ticket in self.tickets if ticket.key.rpartition("/")[2] == token), 0)

    def was_evicted(self, token: str) -> bool:
        """Whether the holder with *token* is among the last that were evicted."""
        return self.evicted is not None and token in evicted_tokens(self.evicted)

    @property
    def foreign(self) -> str:
        """The session of another program that has locked the key; empty if none has."""
        return self.held.session if self.held is not None and self.held.session and not self.token else ""

    def holder(self, name: str, stuck: str = "") -> Holder | None:
        """The holder of *name*, if there is one; *stuck* says why it does not end by itself."""
        held = self.held
        if held is None or not held.session:
            return None
        ours = self.last is not None and self.token and unpacked(self.last.value).get("token") == self.token
        return person(name, held, self.fence if ours else held.modified, stuck)

    def state(self, name: str, remarks: tuple[str, ...], stuck: str = "") -> LockState:
        """Everything that the keys tell of *name*, with *remarks* of the store."""
        waiting = tuple(person(name, ticket, 0) for ticket in self.tickets)
        return LockState(name, self.fence, self.holder(name, stuck), waiting, self._eviction(), remarks)

    def _eviction(self) -> Eviction | None:
        return eviction_of(unpacked(self.evicted.value)) if self.evicted is not None else None


def view(keys: ConsulKeys, entries: Iterable[Entry]) -> ConsulView:
    """The view of the name that has *keys*, among *entries* of one read."""
    found = {entry.key: entry for entry in entries if entry.key.startswith(keys.all)}
    tickets = sorted(
        (entry for key, entry in found.items() if key.startswith(keys.tickets)), key=lambda entry: entry.created
    )
    return ConsulView.of(keys, found, tickets)


FOREIGN = "not a lock of dibs: another program locked the key with a session of its own"

ENDLESS = (
    "its session {} has no ttl, so nothing ends it; if nobody holds the lock, destroy the session, or remove the lock "
    "with dibs evict"
)


def person(name: str, entry: Entry, fence: int, stuck: str = "") -> Holder:
    """The holder or waiter that locked *entry*, by its value; *stuck* says why it does not end by itself."""
    who = Person.read(unpacked(entry.value)) or Person("unknown", 0, "unknown", FOREIGN, wall_clock())
    note = "; ".join(filter(None, (who.note, stuck)))
    return Holder(name, fence, who.host, who.pid, who.user, note, who.since, None)


def evicted_tokens(evicted: Entry | None) -> list[str]:
    """The tokens of the last evicted grants of one name, the newest first."""
    facts = unpacked(evicted.value) if evicted is not None else {}
    before = facts.get("before", [])
    return [facts["token"], *before] if facts and isinstance(before, list) else []


def by_name(entries: Iterable[Entry], name_of: Callable[[str], str | None]) -> dict[str, list[Entry]]:
    """The entries of each name."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        name = name_of(entry.key)
        if name is not None:
            groups.setdefault(name, []).append(entry)
    return groups
