"""What Consul knows of one name, read in one step: who holds it, who waits, who broke it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dibs.holder import Eviction, Holder, LockState
from dibs.ports.consul import Entry, wall_clock
from dibs.stores.consul_keys import Keys
from dibs.stores.consul_txn import unpacked


class View(NamedTuple):
    """The keys of one name, as they were at one moment."""

    held: Entry | None
    """It may exist without a session: another program's client leaves it so."""
    last: Entry | None
    waits: Entry | None
    evicted: Entry | None
    line: tuple[Entry, ...]
    """In the order of arrival."""

    @property
    def is_free(self) -> bool:
        """Whether nobody holds it."""
        return self.held is None or not self.held.session

    @property
    def fence(self) -> int:
        """The last fence given out: the index that wrote the last grant, also after that grant's end."""
        return self.last.modified if self.last is not None else 0

    @property
    def token(self) -> str:
        """Whose grant holds; empty if none does, or if it is not one of ours."""
        return unpacked(self.held.value).get("token", "") if self.held is not None and self.held.session else ""

    def held_by(self, token: str) -> Entry | None:
        """The key, if *token* holds it."""
        return self.held if self.token == token else None

    def ahead_of(self, token: str) -> Sequence[Entry]:
        """The tickets that come before that of *token*; all, if it has none."""
        for place, ticket in enumerate(self.line):
            if ticket.key.rpartition("/")[2] == token:
                return self.line[:place]
        return self.line

    def ticket_of(self, token: str) -> int:
        """The index of its ticket; 0 if it has none."""
        return next((ticket.modified for ticket in self.line if ticket.key.rpartition("/")[2] == token), 0)

    def was_evicted(self, token: str) -> bool:
        """Whether the last that was broken is the grant of *token*."""
        return self.evicted is not None and unpacked(self.evicted.value).get("token") == token

    def holder(self, name: str) -> Holder | None:
        """Who holds it."""
        held = self.held
        if held is None or not held.session:
            return None
        ours = self.last is not None and self.token and unpacked(self.last.value).get("token") == self.token
        return person(name, held, self.fence if ours else held.modified)

    def state(self, name: str, remarks: tuple[str, ...]) -> LockState:
        """All of it."""
        waiting = tuple(person(name, ticket, 0) for ticket in self.line)
        return LockState(name, self.fence, self.holder(name), waiting, self._eviction(), remarks)

    def _eviction(self) -> Eviction | None:
        facts = unpacked(self.evicted.value) if self.evicted is not None else {}
        return Eviction(facts["fence"], facts["reason"], facts["by"], facts["at"]) if facts else None


def view(keys: Keys, entries: Iterable[Entry]) -> View:
    """The view of the name that has *keys*, among *entries* of one read."""
    found = {entry.key: entry for entry in entries if entry.key.startswith(keys.all)}
    line = sorted((entry for key, entry in found.items() if key.startswith(keys.line)), key=lambda entry: entry.created)
    return View(found.get(keys.held), found.get(keys.last), found.get(keys.waits), found.get(keys.evicted), tuple(line))


def person(name: str, entry: Entry, fence: int) -> Holder:
    """Who locked *entry*, by its value."""
    facts = unpacked(entry.value)
    if not facts:
        note = "not a lock of dibs: another program locked the key with a session of its own"
        return Holder(name, fence, "unknown", 0, "unknown", note, wall_clock(), None)
    who = (facts.get("host", "unknown"), facts.get("pid", 0), facts.get("user", "unknown"), facts.get("note", ""))
    return Holder(name, fence, *who, facts.get("since", 0.0), None)


def by_name(entries: Iterable[Entry], name_of: Callable[[str], str | None]) -> dict[str, list[Entry]]:
    """The entries of each name."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        name = name_of(entry.key)
        if name is not None:
            groups.setdefault(name, []).append(entry)
    return groups
