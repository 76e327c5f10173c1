"""Records: what a holder leaves for those who come later, and how a lease ends with one.

A lease that ends with a record must not be given back without it: whoever comes next would do the work again. So an
attempt to finish that failed is repeated until it is answered or the lease is over, also when the caller is cancelled
meanwhile; and if nothing helps the lease ends by its ttl.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from dibs.core.acquiring import Acquiring, Recorded
from dibs.core.budgets import RETURN_BUDGET, retry_after
from dibs.errors import DibsError, LeaseLost, LossReason, Misuse, StoreUnavailable
from dibs.holder import Record
from dibs.stores.record_store import LONGEST_RECORD, record_store
from dibs.stores.store import Ask, Busy, Grant

if TYPE_CHECKING:
    from dibs.core.context import Context
    from dibs.core.lease import Lease


Answer: TypeAlias = LossReason | StoreUnavailable | None
"""What came of finishing: it was written (None), it was refused, or it is not known."""

NOT_ASKED = StoreUnavailable("dibs", "nothing was answered")


class Recalling(Acquiring):
    """One call that takes the lock, or ends with `Recorded` if the name has a record after the fence *after*."""

    __slots__ = ("_after",)

    def __init__(self, context: Context, ask: Ask, timeout: float | None, after: int) -> None:
        super().__init__(context, ask, timeout)
        self._after, self._grant = after, self._grant_or_recall

    async def _grant_or_recall(self, ask: Ask, within: float) -> Grant | Busy:
        answer = await record_store(self._context.store).grant_unless_recorded(ask, self._after, within)
        if isinstance(answer, Record):
            raise Recorded(answer)
        return answer


def checked_record(data: bytes, name: str) -> bytes:
    """Return *data* if it can be the record of *name*."""
    if len(data) > LONGEST_RECORD:
        raise Misuse(
            f"the record of {name!r} would have {len(data)} bytes, and {LONGEST_RECORD} is the most: leave the data "
            "where it belongs, and record where that is"
        )
    return data


async def remember(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    """Write *data* as the record of what *lease* holds, for *keep* seconds, and go on holding it."""
    lease.check()
    reason = await context.closing.do(
        record_store(context.store).remember, lease._claim, checked_record(data, lease.name), keep, step(context, lease)
    )
    if reason is not None:
        lease.lost._happen(reason)
        raise LeaseLost(lease.name, lease.fence, reason)


async def finish(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    """Write *data* as the record, and give the lock back, in one step; it is repeated until it is answered.

    `LeaseLost` if the lease was over: nothing was written. `StoreUnavailable` if there was no answer before its end:
    it is not known whether it was written.
    """
    await context.closing.give_back(_finish_in_time, context, lease, data, keep)


async def _finish_in_time(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    lease.check()
    checked_record(data, lease.name)
    until = lease.lost._deadline  # nobody renews it any more from here on
    try:
        if not lease._end("finished"):
            lease.check()
        answer = await context.runtime.shielded(_finish(context, lease, data, keep, until))
    except BaseException as error:  # Ctrl-C, where nothing shields from it: one more try
        if context.runtime.blocking and not isinstance(error, DibsError):
            await _try_finish(context, lease, data, keep)
        raise
    if isinstance(answer, StoreUnavailable):
        raise answer
    _tell(lease, answer)


async def finish_or_leave(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    """Do the same where the work may be done again: one try, and if it fails the lock is given back without a record.

    `LeaseLost` if the lease was over: nothing was written.
    """
    await context.closing.give_back(_finish_at_once, context, lease, data, keep)


async def _finish_at_once(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    lease.check()
    answer: Answer = NOT_ASKED
    try:
        if not lease._end("finished"):
            lease.check()
        answer = await context.runtime.shielded(_try_finish(context, lease, data, keep))
    finally:
        if isinstance(answer, StoreUnavailable):
            context.give_back_later(lease.name, lease.token, lease.ttl)
    if not isinstance(answer, StoreUnavailable):
        _tell(lease, answer)


async def try_to_finish(context: Context, lease: Lease, data: bytes, keep: float) -> None:
    """Do the same once more if Ctrl-C came before it was begun; whatever comes of it, Ctrl-C goes on."""
    if lease._end("finished"):
        with suppress(Exception):
            await _try_finish(context, lease, data, keep)


def step(context: Context, lease: Lease) -> float:
    """Seconds for one request about *lease*."""
    return context.step_budget(lease.ttl)


# Both return what they have to say and raise nothing: who waits for them may have been cancelled, and hear nothing.


async def _finish(context: Context, lease: Lease, data: bytes, keep: float, until: float) -> Answer:
    now, failures = context.runtime.now, 0
    while True:
        answer = await _try_finish(context, lease, data, keep, max(until - now(), RETURN_BUDGET))
        failures += 1
        pause = retry_after(failures, lease.ttl)
        if not isinstance(answer, StoreUnavailable) or now() + pause >= until or context.closing.over:
            return answer
        await context.runtime.sleep(pause)


async def _try_finish(
    context: Context, lease: Lease, data: bytes, keep: float, within: float = RETURN_BUDGET
) -> Answer:
    try:
        within = min(step(context, lease), within)
        return await record_store(context.store).finish(lease._claim, data, keep, within)
    except StoreUnavailable as error:
        return error


def _tell(lease: Lease, reason: LossReason | None) -> None:
    if reason is not None:
        lease.lost._found(reason)
        raise LeaseLost(lease.name, lease.fence, reason)
