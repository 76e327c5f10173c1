"""One call of `Lock.acquire`: ask, wait for a turn, ask again, and leave nothing behind however it ends.

Anything sent may have happened, or may still happen long after. So every ask of one call carries the same token, an
unknown answer is resolved by asking again with it, and a call that leaves without the lock gives the token back: by
exception, timeout, cancel or Ctrl-C. The lease counts from the ask that was answered with the grant: the store counts
from that one too, also if it had carried out an earlier one (see `Store`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.budgets import LEAST, LONGEST_STEP, PARTING, RETURN_BUDGET, valid_until
from dibs.core.closing import PendingAsk
from dibs.core.deadline import Deadline
from dibs.errors import Misuse, NotAcquired, OutcomeUnknown, StoreUnavailable
from dibs.holder import Record
from dibs.log import logger
from dibs.stores.store import Ask, Busy, Grant

if TYPE_CHECKING:
    from dibs.core.context import Context

LONGEST_WAIT = 5.0
"""Seconds after which a waiter asks again even if nothing hints at it: what a lost hint costs at most."""

PATIENCE = 10.0
"""Seconds for which a waiter that has already been answered goes on asking a store that stopped answering."""

LATEST = 120.0
"""Seconds after which a sent request can no longer arrive: a kernel sends for a closed socket for about 100 s."""

BLIP = 1.0
"""Seconds: if the store failed for less than this when the time was up, its last answer, busy, still counts."""


class Recorded(Exception):
    """Ends an acquire that is answered with the record of the name; see `dibs.core.record`."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.record = record


class Acquiring(PendingAsk):
    """The state of one call."""

    __slots__ = (
        "_busy",
        "_context",
        "_deadline",
        "_failed_at",
        "_failing_since",
        "_grant",
        "_started",
        "_timeout",
        "_ttl",
        "_unsure",
        "_warned",
        "ask",
        "granted",
        "waits",
    )

    def __init__(self, context: Context, ask: Ask, timeout: float | None, deadline: Deadline | None = None) -> None:
        self._context, self.ask, self._ttl, self._timeout = context, ask, ask.ttl, timeout
        self._grant = context.store.grant
        self._started = context.runtime.now()
        self._deadline = Deadline(context.runtime.now, timeout) if deadline is None else deadline
        self._unsure = False  # whether an ask with this token was never answered: it may still be carried out
        self._failing_since: float | None = None  # when the first step was begun that failed
        self._failed_at: float | None = None  # when it did
        self._busy: Busy | None = None  # the last answer
        self.granted = False  # whether the answer was a grant of use, which is then the caller's to look after
        self.waits = False  # whether it has been answered, and waits until it is worth asking again
        self._warned = False  # whether the log says what this waits for

    async def once(self) -> tuple[Grant, float] | Busy:
        """Ask, without a ticket."""
        try:
            return await self._attempt()
        except BaseException as error:
            await self._leave(error)
            raise

    async def wait(self) -> tuple[Grant, float]:
        """Ask until it is granted, in line with the others of this client; `NotAcquired` at the deadline."""
        waiters, name = self._context.waiters, self.ask.name
        place = waiters.place()
        try:
            waiters.join(name, place)
            while True:  # with its condition here, Ctrl-C could come past this `try`: tests/test_loops.py
                self.waits = True
                if not await waiters.reach(place, self._deadline) or self._deadline.passed():
                    raise self.refused()
                self._context.check_usable()  # it may have been closed while we waited
                self.waits = False
                self._context.closing.refuse()  # closing waits for us from here on, or we see that it did not
                self.ask = self.ask._replace(queue=True)
                answer = await self._attempt()
                if not isinstance(answer, Busy):
                    return answer
                self._warn(answer)
                await self._pause(answer)
        except BaseException as error:
            await self._leave(error)
            raise
        finally:
            try:
                waiters.leave(name, place)
            except BaseException:  # Ctrl-C
                waiters.leave(name, place)
                raise

    async def undo(self) -> None:
        """Give back what was granted: no lease was made of it, because of Ctrl-C or for want of a thread."""
        if self.granted:
            await self._context.give_back(self.ask.name, self.ask.token, self._ttl)

    def _warn(self, busy: Busy) -> None:
        """If the wait may never end, log what it waits for; otherwise it would be silent for ever."""
        if busy.stuck and not self._warned:
            self._warned = True
            logger().warning("a wait for the lock %r may not end: %s", self.ask.name, busy.stuck)

    def refused(self) -> NotAcquired:
        """The error that says who has it instead."""
        holder, why = (self._busy.holder, self._busy.why) if self._busy else (None, "")
        return NotAcquired(self.ask.name, holder, self._context.runtime.now() - self._started, why)

    async def _attempt(self) -> tuple[Grant, float] | Busy:
        """Ask until there is an answer. A grant comes with the moment from which its ttl counts."""
        while True:
            now = self._context.runtime.now()
            try:
                answer = await self._grant(self.ask, self._step_budget())
            except StoreUnavailable as error:
                self._unsure = self._unsure or isinstance(error, OutcomeUnknown)
                await self._bear(error, now)
                self._context.check_usable()  # it may have been closed meanwhile
                continue
            self._failing_since = self._failed_at = None
            if isinstance(answer, Busy):
                self._busy = answer
                return answer
            if self._context.runtime.now() < valid_until(now, answer.ttl):
                self.granted = True
                return answer, now
            # It was granted too long ago to be of use: give it back, and ask anew under a new token.
            await self._give_back()
            if self._deadline.passed():
                raise self.refused()
            token, share = self._context.runtime.token(), self.ask.share
            self.ask, self._unsure = self.ask._replace(token=token if share is None else share.token(token)), False

    async def _bear(self, error: StoreUnavailable, began: float) -> None:
        """Pause before the next try, or give up: a newcomer is told at once, a waiter survives a blip.

        The step that failed was begun at *began*. It may have hung since then, and that was no blip.
        """
        self._context.closing.refuse()  # else it would say what closing does to a store
        now = self._context.runtime.now()
        if self._failing_since is None or self._failed_at is None:
            self._failing_since, self._failed_at = began, now
        failing = now - self._failing_since
        resolves = isinstance(error, OutcomeUnknown) and now - self._failed_at < min(1.0, self._ttl / 3)
        waits = self._busy is not None and self.ask.queue
        if self._deadline.passed():
            raise self.refused() if waits and failing < BLIP else error
        if not resolves and not (waits and failing < PATIENCE):
            raise error
        await self._context.runtime.sleep(min(self._deadline.left(), 0.05 + 0.05 * self._context.runtime.random()))

    async def _pause(self, busy: Busy) -> None:
        jitter = 0.01 * self._context.runtime.random()
        longest = min(LONGEST_WAIT, self._deadline.look_every)
        within = min(self._deadline.left(), max(busy.retry_in, 0.001) + jitter, longest)
        self.waits = True
        try:
            await self._context.store.wait(self.ask, busy, within)
        except StoreUnavailable as error:
            await self._bear(error, self._context.runtime.now())

    def _step_budget(self) -> float:
        """What one request may take: what is left, and a part of the ttl; a single try may take that part."""
        longest = min(LONGEST_STEP, self._ttl / 2)
        return min(self._deadline.left(PARTING), longest) if self._timeout else longest

    async def _leave(self, error: BaseException) -> None:
        """Give back what may have been taken, and the ticket."""
        if isinstance(error, Misuse | Recorded) and self._busy is None and not self._unsure:
            return  # refused before anything was sent, or answered with something else than a grant or a place in line
        if isinstance(error, Misuse) and self.waits and self._context.closing.over:
            return  # closing has given it back
        if isinstance(error, StoreUnavailable):
            if self.ask.queue or self._unsure:
                self._leave_to_keeper()
        elif isinstance(error, GeneratorExit):  # the coroutine is being closed: nothing can be awaited any more
            self._leave_to_keeper()
        elif isinstance(error, NotAcquired):
            if self.ask.queue or self._unsure:
                await self._give_back()
        else:
            self._unsure = True
            await self._context.give_back(self.ask.name, self.ask.token, self._lasts())

    async def _give_back(self) -> None:
        """Give back in what is left of the budget, else in the background."""
        within = min(self._deadline.left(PARTING), RETURN_BUDGET)
        if within >= LEAST:
            await self._context.give_back(self.ask.name, self.ask.token, self._lasts(), within=within)
        else:
            self._leave_to_keeper()

    def _leave_to_keeper(self) -> None:
        self._context.give_back_later(self.ask.name, self.ask.token, self._lasts())

    def _lasts(self) -> float:
        """Seconds for which the token may have something, if nobody tells the store that it was given back."""
        return self._ttl + LATEST if self._unsure else self._ttl
