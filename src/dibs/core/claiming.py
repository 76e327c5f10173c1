"""One slot, claimed: ask what time it is, look at what has run, take the name, and write down that it begins.

The start is on record before the work begins, and with the outcome in the step that gives the name back. So a crash at
any moment leaves a slot that was started and has not ended well, which nobody takes for one that was not: whether it
may be started again is for *retries* to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core import recording
from dibs.core.acquiring import LONGEST_STEP
from dibs.core.deadline import Deadline
from dibs.core.history import FAILED, OK, RUNNING, History, Past, read
from dibs.core.keeper import retry_after
from dibs.core.lease import Lease
from dibs.errors import NotAcquired, Skipped, SkipReason, StoreUnavailable
from dibs.holder import Record, here
from dibs.ports.calendar import utc

if TYPE_CHECKING:
    from dibs.core.client import Client
    from dibs.core.once import Terms
    from dibs.core.slots import Slot


class Claimed:
    """A slot that is ours: the lease under which it runs, and what is on record."""

    def __init__(self, client: Client, terms: Terms, slot: Slot, lease: Lease, history: History) -> None:
        self._client, self._terms, self._history = client, terms, history
        self.slot, self.lease = slot, lease
        self.attempt = history.runs[-1].attempt
        self._began_at = client.runtime.now()

    async def end(self, error: str | None) -> None:
        """Write down how it ended, well if *error* is None, and give the name back; as `recording.finish` does."""
        took = self._client.runtime.now() - self._began_at
        outcome = FAILED if error is not None else OK
        data = self._history.ended(outcome, error or "", took).data()
        await recording.finish(self._client, self.lease, data, self._terms.keep_for(self.slot))


async def claim(client: Client, terms: Terms) -> Claimed:
    """Take the slot that it is now, by the store's clock; `Skipped` says why not."""
    client.enter(terms.name)
    recording.check_records(client.store)
    clock = _Clock(client, await client.store.time(terms.name, LONGEST_STEP))
    slot = _due(terms, clock.now())
    deadline = Deadline(client.runtime.now, terms.timeout)
    record = await client.store.record(terms.name, LONGEST_STEP)
    while True:
        history = read(record)
        _refuse(terms, slot, history, clock)
        answer = await _taken(client, terms, slot, record, deadline)
        if not isinstance(answer, Record):
            break
        record = answer
    try:
        if history.runs_now:  # it has ended since we looked, or its lease has: it wrote under the fence that we know
            history = read(await client.store.record(terms.name, LONGEST_STEP)).crashed()
        await _refuse_held(client, terms, slot, history, clock, answer)
        return await _begun(client, terms, slot, history, clock, answer)
    except BaseException:
        answer.leave()
        raise


class _Clock:
    """The store's time, kept on ours: only its length is measured here."""

    def __init__(self, client: Client, store_now: float) -> None:
        self._now, self._ahead = client.runtime.now, store_now - client.runtime.now()

    def now(self) -> float:
        """Unix time where the record is kept, or a request's length earlier."""
        return self._now() + self._ahead


def _due(terms: Terms, now: float) -> Slot:
    slot = terms.schedule.slot(now)
    if slot is None:
        raise Skipped(terms.name, "none", SkipReason.NOT_DUE, f"the schedule has no slot before {utc(now)}")
    _check_not_late(terms, slot, now)
    return slot


def _check_not_late(terms: Terms, slot: Slot, now: float) -> None:
    if slot.at is not None and terms.late is not None and now > slot.at + terms.late:
        then = f"; the next one begins at {utc(slot.until)}" if slot.until is not None else ""
        late = f"it began {now - slot.at:.0f} s ago, which is more than late={terms.late:g}{then}"
        raise Skipped(terms.name, slot.key, SkipReason.NOT_DUE, late)


def _check_still_due(terms: Terms, slot: Slot, now: float) -> None:
    """Look again, with the name in hand: whoever waited for it may have waited until the slot was over."""
    if slot.until is not None and now >= slot.until:
        over = f"it was over at {utc(slot.until)}, before the name was free; call again for the slot of now"
        raise Skipped(terms.name, slot.key, SkipReason.NOT_DUE, over)
    _check_not_late(terms, slot, now)


def _refuse(terms: Terms, slot: Slot, history: History, clock: _Clock) -> None:
    refusal = history.refusal(slot, terms.retries, clock.now())
    if refusal is not None:
        raise Skipped(terms.name, slot.key, *refusal)


async def _taken(client: Client, terms: Terms, slot: Slot, seen: Record | None, deadline: Deadline) -> Lease | Record:
    """Take the name, unless there is a later record than the one that was *seen*."""
    left = terms.timeout if not terms.timeout else deadline.left()
    try:
        return await terms.lock(client, slot).take_or_recall(0 if seen is None else seen.fence, left)
    except NotAcquired as refused:
        by = f"by {refused.holder}" if refused.holder else "somewhere"
        raise Skipped(terms.name, slot.key, SkipReason.RUNNING, f"the name is held {by}") from refused


async def _refuse_held(client: Client, terms: Terms, slot: Slot, history: History, clock: _Clock, lease: Lease) -> None:
    """Look at all of it again for one whose name we hold: leave on record what became of the last run."""
    try:
        _refuse(terms, slot, history, clock)
        _check_still_due(terms, slot, clock.now())
    except Skipped:
        await recording.finish(client, lease, history.data(), terms.keep_for(slot))
        raise


async def _begun(client: Client, terms: Terms, slot: Slot, history: History, clock: _Clock, lease: Lease) -> Claimed:
    who = here(client.runtime.pid(), terms.name, "")
    attempt = history.attempts(slot) + 1
    run = Past(slot.key, slot.at, attempt, RUNNING, "", clock.now(), None, who.host, who.pid, who.user)
    history = history.begun(run, terms.min_hold)
    await _remembered(client, lease, history.data(), terms.keep_for(slot))
    return Claimed(client, terms, slot, lease, history)


async def _remembered(client: Client, lease: Lease, data: bytes, keep: float) -> None:
    """Write it, again and again for a part of the lease: the work must not begin before it is certain."""
    until, failures = client.runtime.now() + min(LONGEST_STEP, lease.ttl / 2), 0
    while True:
        try:
            return await recording.remember(client, lease, data, keep)
        except StoreUnavailable:
            failures += 1
            pause = retry_after(failures, lease.ttl)
            if client.runtime.now() + pause >= until:
                raise
            await client.runtime.sleep(pause)
