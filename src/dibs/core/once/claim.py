"""One slot, claimed: ask what time it is, look at what has run, take the name, and write down that it begins.

The start is on record before the work begins, and with the outcome in the step that gives the name back. So a crash at
any moment leaves a slot that was started and has not ended well, which nobody takes for one that was not: whether it
may be started again is for *retries* to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core import record as recording
from dibs.core.budgets import LONGEST_STEP, retry_after
from dibs.core.deadline import Deadline
from dibs.core.lease import Lease
from dibs.core.once.history import FAILED, OK, RUNNING, History, Past, read
from dibs.errors import NotAcquired, Skipped, SkipReason, StoreUnavailable
from dibs.holder import Record, here
from dibs.ports.cron import utc
from dibs.stores.record_store import record_store

if TYPE_CHECKING:
    from dibs.core.context import Context
    from dibs.core.once.options import OnceOptions
    from dibs.core.once.slots import Slot


class Claimed:
    """A slot that is ours: the lease under which it runs, and what is on record."""

    def __init__(self, context: Context, options: OnceOptions, slot: Slot, lease: Lease, history: History) -> None:
        self._context, self._options, self._history = context, options, history
        self.slot, self.lease = slot, lease
        self.attempt = history.runs[-1].attempt
        self._began_at = context.runtime.now()

    async def end(self, error: str | None) -> None:
        """Write down how it ended, well if *error* is None, and give the name back; as `recording.finish` does."""
        took = self._context.runtime.now() - self._began_at
        outcome = FAILED if error is not None else OK
        data = self._history.ended(outcome, error or "", took).data()
        await recording.finish(self._context, self.lease, data, self._options.keep_for(self.slot))


async def claim(context: Context, options: OnceOptions, taken: list[Lease]) -> Claimed:
    """Take the slot that it is now, by the store's clock; `Skipped` says why not.

    The lease is in *taken* as soon as it exists, as with `Lock._take`.
    """
    context.check_usable(options.name)
    store = record_store(context.store)
    clock = _Clock(context, await context.closing.do(store.time, options.name, LONGEST_STEP))
    slot = _due(options, clock.now())
    deadline = Deadline(context.runtime.now, options.timeout)
    record = await context.closing.do(store.record, options.name, LONGEST_STEP)
    while True:
        history = read(record)
        _refuse(options, slot, history, clock)
        answer = await _taken(context, options, slot, record, deadline, taken)
        if not isinstance(answer, Record):
            break
        record = answer
    try:
        if history.runs_now:  # it has ended since we looked, or its lease has: it wrote under the fence that we know
            history = read(await context.closing.do(store.record, options.name, LONGEST_STEP)).crashed()
        await _refuse_held(context, options, slot, history, clock, answer)
        return await _begun(context, options, slot, history, clock, answer)
    except BaseException:
        answer._leave()
        raise


class _Clock:
    """The store's time, kept on ours: only its length is measured here."""

    def __init__(self, context: Context, store_now: float) -> None:
        self._now, self._ahead = context.runtime.now, store_now - context.runtime.now()

    def now(self) -> float:
        """Unix time where the record is kept, or a request's length earlier."""
        return self._now() + self._ahead


def _due(options: OnceOptions, now: float) -> Slot:
    slot = options.schedule.slot(now)
    if slot is None:
        raise Skipped(options.name, "none", SkipReason.NOT_DUE, f"the schedule has no slot before {utc(now)}")
    _check_not_late(options, slot, now)
    return slot


def _check_not_late(options: OnceOptions, slot: Slot, now: float) -> None:
    if slot.at is not None and options.late is not None and now > slot.at + options.late:
        then = f"; the next one begins at {utc(slot.until)}" if slot.until is not None else ""
        late = f"it began {now - slot.at:.0f} s ago, which is more than late={options.late:g}{then}"
        raise Skipped(options.name, slot.key, SkipReason.NOT_DUE, late)


def _check_still_due(options: OnceOptions, slot: Slot, now: float) -> None:
    """Look again, with the name in hand: whoever waited for it may have waited until the slot was over."""
    if slot.until is not None and now >= slot.until:
        over = f"it was over at {utc(slot.until)}, before the name was free; call again for the slot of now"
        raise Skipped(options.name, slot.key, SkipReason.NOT_DUE, over)
    _check_not_late(options, slot, now)


def _refuse(options: OnceOptions, slot: Slot, history: History, clock: _Clock) -> None:
    refusal = history.refusal(slot, options.retries, clock.now())
    if refusal is not None:
        raise Skipped(options.name, slot.key, *refusal)


async def _taken(
    context: Context, options: OnceOptions, slot: Slot, seen: Record | None, deadline: Deadline, taken: list[Lease]
) -> Lease | Record:
    """Take the name, unless there is a later record than the one that was *seen*."""
    left = options.timeout if not options.timeout else deadline.left()
    try:
        return await options.lock(context, slot)._take_or_recall(0 if seen is None else seen.fence, left, taken)
    except NotAcquired as refused:
        by = f"by {refused.holder}" if refused.holder else "somewhere"
        raise Skipped(options.name, slot.key, SkipReason.RUNNING, f"the name is held {by}") from refused


async def _refuse_held(
    context: Context, options: OnceOptions, slot: Slot, history: History, clock: _Clock, lease: Lease
) -> None:
    """Look at all of it again for one whose name we hold: leave on record what became of the last run."""
    try:
        _refuse(options, slot, history, clock)
        _check_still_due(options, slot, clock.now())
    except Skipped:
        await recording.finish(context, lease, history.data(), options.keep_for(slot))
        raise


async def _begun(
    context: Context, options: OnceOptions, slot: Slot, history: History, clock: _Clock, lease: Lease
) -> Claimed:
    who = here(context.runtime.pid(), options.name, "")
    attempt = history.attempts(slot) + 1
    run = Past(slot.key, slot.at, attempt, RUNNING, "", clock.now(), None, who.host, who.pid, who.user)
    history = history.begun(run, options.min_hold)
    await _remembered(context, lease, history.data(), options.keep_for(slot))
    return Claimed(context, options, slot, lease, history)


async def _remembered(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    """Write it, again and again for a part of the lease: the work must not begin before it is certain."""
    until, failures = context.runtime.now() + min(LONGEST_STEP, lease.ttl / 2), 0
    while True:
        try:
            return await recording.remember(context, lease, data, keep)
        except StoreUnavailable:
            failures += 1
            pause = retry_after(failures, lease.ttl)
            if context.runtime.now() + pause >= until:
                raise
            await context.runtime.sleep(pause)
