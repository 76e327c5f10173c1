"""What is remembered of the slots of one name: who ran them, when, how long, and how they ended.

It is one record of the name, as JSON, and only the holder of the name writes it. Pure data and questions about it; all
times are unix time by the store's clock.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from dibs.core.once.slots import Slot
from dibs.errors import Misuse, SkipReason
from dibs.holder import Record
from dibs.ports.cron import utc

KIND = "once 1"
"""What the record begins with, so that no other data is taken for it."""

MOST_RUNS = 50
"""Runs that are told in full; a write carries them all."""

MOST_KEYS = 1000
"""Slots before those, of which only a digest is known still."""

MOST_BYTES = 100_000
"""Of all that is remembered of one name."""

RUNNING, OK, FAILED, CRASHED = "running", "ok", "failed", "crashed"


class Past(NamedTuple):
    """One run of a slot, as `Once.history` returns it."""

    slot: str
    at: float | None
    """When the slot began; None for one that was named by its caller."""
    attempt: int
    """1 for the first start in the slot."""
    outcome: str
    """running, ok, failed (it raised, or its command ended with an error), or crashed (its lease ended)."""
    detail: str
    """The error of one that failed."""
    started: float
    took: float | None
    """Seconds; None if it has not ended, or nobody knows when."""
    host: str
    pid: int
    user: str

    @property
    def who(self) -> str:
        """The process that ran it, for people."""
        return f"{self.host} pid {self.pid} (user {self.user})"

    def __str__(self) -> str:
        took = f" after {self.took:.1f} s" if self.took is not None else ""
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        why = f": {self.detail}" if self.detail else ""
        return f"{self.slot} {self.outcome}{took}, started {utc(self.started)} by {self.who}{again}{why}"


class SlotRefusal(NamedTuple):
    """Why a slot is not to be started."""

    reason: SkipReason
    detail: str


class History(NamedTuple):
    """The runs of one name, the latest last."""

    runs: tuple[Past, ...] = ()
    keys: tuple[str, ...] = ()
    """Digests of the slots before those: a record has room for as many as are promised, whatever they are called."""
    not_before: float = 0.0
    """No run starts before that: *min_hold* of the last one."""

    def refusal(self, slot: Slot, retries: int, now: float) -> SlotRefusal | None:
        """Tell why *slot* must not be started at *now*; whether one that is running still runs is the lock's to say."""
        tried = [run for run in self.runs if run.slot == slot.key]
        done = next((run for run in tried if run.outcome == OK), None)
        if done is not None:
            return SlotRefusal(SkipReason.ALREADY_RAN, f"at {utc(done.started)}, by {done.who}")
        if _digest(slot.key) in self.keys or self._is_older_than_known(slot):
            return SlotRefusal(SkipReason.ALREADY_RAN, "it is older than all that is remembered in full")
        if tried and tried[-1].outcome != RUNNING and tried[-1].attempt > retries:
            return SlotRefusal(
                SkipReason.GIVEN_UP, f"its last try {_ended(tried[-1])}, and it may be tried again {retries} times"
            )
        if now < self.not_before and not (tried and tried[-1].outcome == RUNNING):
            return SlotRefusal(
                SkipReason.NOT_DUE,
                f"the last run began less than its min_hold before; not before {utc(self.not_before)}",
            )
        return None

    def attempts(self, slot: Slot) -> int:
        """How often *slot* was started."""
        return max((run.attempt for run in self.runs if run.slot == slot.key), default=0)

    @property
    def runs_now(self) -> bool:
        """Whether the last one had not ended when this was written."""
        return bool(self.runs) and self.runs[-1].outcome == RUNNING

    def crashed(self) -> History:
        """The same, where the last one had not ended, and its lease has."""
        if not self.runs_now:
            return self
        return self._replace(runs=(*self.runs[:-1], self.runs[-1]._replace(outcome=CRASHED)))

    def begun(self, run: Past, min_hold: float) -> History:
        """The same, and *run* has begun."""
        history = History((*self.runs, run), self.keys, run.started + min_hold)
        while len(history.runs) > MOST_RUNS or (len(history.runs) > 1 and len(history.data()) > MOST_BYTES):
            history = history._without_the_first()
        return history

    def ended(self, outcome: str, detail: str, took: float) -> History:
        """The same, and the last one has ended."""
        last = self.runs[-1]._replace(outcome=outcome, detail=detail[:200], took=took)
        return self._replace(runs=(*self.runs[:-1], last))

    def data(self) -> bytes:
        """Write it as the record of the name."""
        facts = {"dibs": KIND, "runs": self.runs, "keys": self.keys, "not_before": self.not_before}
        return json.dumps(facts, separators=(",", ":")).encode()

    def _without_the_first(self) -> History:
        """The same, with one run less that is told; its slot is known on."""
        first, *others = self.runs
        again = any(run.slot == first.slot for run in others)
        keys = self.keys if again else (*self.keys, _digest(first.slot))[-MOST_KEYS:]
        return self._replace(runs=tuple(others), keys=keys)

    def _is_older_than_known(self, slot: Slot) -> bool:
        """Whether it may have been dropped: slots with a time come in its order."""
        first = self.runs[0].at if len(self.runs) == MOST_RUNS else None
        return slot.at is not None and first is not None and slot.at < first


def read(record: Record | None) -> History:
    """Read what `History.data` wrote."""
    if record is None:
        return History()
    found = maybe_read(record)
    if found is None:
        raise Misuse(f"the record of {record.name!r} is not of slots that ran once; take another name")
    return found


def maybe_read(record: Record) -> History | None:
    """Read it if it is a history; None if it is something else."""
    try:
        facts: dict[str, Any] = json.loads(record.data)
        if facts["dibs"] != KIND:
            return None
        runs = tuple(Past(*run) for run in facts["runs"])
        return History(runs, tuple(facts["keys"]), float(facts["not_before"]))
    except (ValueError, KeyError, TypeError):
        return None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _ended(run: Past) -> str:
    what = f"{run.outcome} ({run.detail})" if run.detail else run.outcome
    return f"{what}, started at {utc(run.started)} by {run.who}"
