"""Who holds a lock, who waits for it, and what the store remembers of it: the facts people are shown."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, Self


class Holder(NamedTuple):
    """One process that holds, or waits for, a lock. It tells people where to look; it proves nothing."""

    name: str
    fence: int
    """The fence of its grant; 0 for one that only waits."""
    host: str
    pid: int
    user: str
    note: str
    since: float
    """When it was granted, or began to wait: unix time, by the store's clock."""
    expires_in: float | None
    """Seconds until its lease ends unless it is renewed; `None` where the store has no such time."""
    share: str = ""
    """What of the name it has, or wants, if not all of it: ``shared``, or ``2 of 10 slots``."""

    def __str__(self) -> str:
        started = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(self.since))
        text = f"{self.host} pid {self.pid} (user {self.user}) since {started}" if self.pid else "another program"
        if self.share:
            text += f", {self.share}"
        if self.note:
            text += f", note {self.note!r}"
        if self.expires_in is not None:
            text += f", lease ends in {self.expires_in:.1f} s unless renewed"
        return text + (f", fence {self.fence}" if self.fence else "")


class Leader(NamedTuple):
    """Who leads, as `Election.leader` tells it."""

    candidate: str
    """What the leader called itself, else its host and pid."""
    term: int
    """The number of its term, which is the fence of its lease: higher for every later leader."""
    holder: Holder
    """Its process."""

    @classmethod
    def of(cls, holder: Holder) -> Self:
        """Read it from who holds the lock of the election."""
        leads = holder.note.startswith(LEADS)
        candidate = holder.note.removeprefix(LEADS) if leads else f"{holder.host}:{holder.pid}"
        return cls(candidate, holder.fence, holder)

    def __str__(self) -> str:
        return f"{self.candidate}, term {self.term}"


LEADS = "leads as "
"""How the note of a leader's lease begins; its candidate follows."""


class Eviction(NamedTuple):
    """A grant that somebody broke on purpose."""

    fence: int
    reason: str
    by: str
    """Who did it: user, host and pid."""
    at: float
    """Unix time, by the store's clock."""


class LockState(NamedTuple):
    """What a store knows of one name, as `Client.show` returns it."""

    name: str
    fence: int
    """The last fence given out, 0 if the name was never locked."""
    holder: Holder | None
    waiting: tuple[Holder, ...]
    """In arrival order, where the store keeps one."""
    evicted: Eviction | None
    """The last time somebody broke this lock."""
    remarks: tuple[str, ...] = ()
    """What the store has to say of itself, such as which of its nodes do not vote."""
    sharing: tuple[Holder, ...] = ()
    """All who hold it, by fence, if it is shared or a semaphore; *holder* is then the first of them."""

    @property
    def holders(self) -> tuple[Holder, ...]:
        """All who hold it: several if it is shared or a semaphore, else one, or none."""
        return self.sharing or (() if self.holder is None else (self.holder,))


class Record(NamedTuple):
    """What a holder of a name left there: it outlives the lock, and only the next holders can replace it."""

    name: str
    fence: int
    """Of the grant under which it was written."""
    data: bytes
    at: float
    """When it was written: unix time, by the store's clock."""
    expires_in: float
    """Seconds until the store forgets it."""


LATEST = 1e11
"""Unix time in the year 5138: a later moment is none, and cannot be shown."""


class Person(NamedTuple):
    """Who wrote an entry of a store, as the entry says. Anybody may have written it, so nothing in it is trusted."""

    host: str
    pid: int
    user: str
    note: str
    since: float

    @classmethod
    def read(cls, facts: Mapping[str, object]) -> Self | None:
        """Read the facts; None if they are not those of a holder."""
        host, pid, user, note = (facts.get(what) for what in ("host", "pid", "user", "note"))
        if not isinstance(host, str) or not isinstance(user, str) or type(pid) is not int or not 0 <= pid < MOST_PIDS:
            return None
        return cls(host, pid, user, note if isinstance(note, str) else "", moment(facts.get("since")))


MOST_PIDS = 2**63


def moment(value: object) -> float:
    """*value* as unix time; 0 if it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value <= LATEST else 0.0


def facts_of(data: str | bytes) -> dict[str, Any]:
    """The JSON object in *data*; nothing if there is something else."""
    import json  # noqa: PLC0415 - costs 3 ms at start, and `dibs run` on SQLite does without

    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def eviction_of(facts: object) -> Eviction | None:
    """The eviction that *facts* tell; None if they tell something else."""
    if not isinstance(facts, dict) or type(facts.get("fence")) is not int:
        return None
    reason, by = (text if isinstance(text := facts.get(what), str) else "" for what in ("reason", "by"))
    return Eviction(facts["fence"], reason, by, moment(facts.get("at")))


@lru_cache(maxsize=8)
def _process(pid: int) -> tuple[str, int, str]:
    """Host, pid and user of the process *pid*, which is this one."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run under a uid that has no name
        user = str(os.geteuid())
    return os.uname().nodename, pid, user


def here(pid: int, name: str, note: str) -> Holder:
    """This process as a holder of *name*; its fence and its times are the store's to fill in."""
    return Holder(name, 0, *_process(pid), note, 0.0, None)


def signature(who: Holder) -> str:
    """User, host and pid of *who*: how the stores write down who evicted a holder."""
    return f"{who.user} on {who.host} pid {who.pid}"
