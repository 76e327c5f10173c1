"""One call of `Lock.acquire`: ask, wait for a turn, ask again, and leave nothing behind however it ends.

Anything sent may have happened. So every ask of one call carries the same token, an unknown answer is resolved by
asking again with it, and whoever leaves without the lock gives the token back: by exception, timeout, cancel or
Ctrl-C.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.deadline import Deadline
from dibs.core.keeper import RETURN_BUDGET
from dibs.core.loss import valid_until
from dibs.errors import Misuse, NotAcquired, OutcomeUnknown, StoreUnavailable
from dibs.holder import Record
from dibs.part import part_of
from dibs.stores.store import Ask, Busy, Grant

if TYPE_CHECKING:
    from dibs.core.client import Client

LONGEST_STEP = 5.0
"""Seconds that one request may take where the ttl allows it: longer says that the store is unreachable."""

LONGEST_WAIT = 5.0
"""Seconds after which a waiter asks again even if nothing hints at it: what a lost hint costs at most."""

PATIENCE = 10.0
"""Seconds for which a waiter that has already been answered goes on asking a store that stopped answering."""

PARTING = 0.04
"""Seconds after the deadline at which the last ask and the leaving have ended; the keeper does the rest."""

LEAST = 0.005
"""Seconds below which a request is not even begun, but left to the keeper."""

BLIP = 1.0
"""Seconds: if the store failed for less than this when the time was up, its last answer, busy, still counts."""


class Recorded(Exception):
    """Ends an acquire that is answered with the record of the name; see `dibs.core.recording`."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.record = record


class Acquiring:
    """The state of one call."""

    __slots__ = (
        "_busy",
        "_client",
        "_deadline",
        "_failed_at",
        "_failing_since",
        "_grant",
        "_started",
        "_timeout",
        "_ttl",
        "_unsure_since",
        "ask",
    )

    def __init__(self, client: Client, ask: Ask, timeout: float | None, deadline: Deadline | None = None) -> None:
        self._client, self.ask, self._ttl, self._timeout = client, ask, ask.ttl, timeout
        self._grant = client.store.grant
        self._started = client.runtime.now()
        self._deadline = Deadline(client.runtime.now, timeout) if deadline is None else deadline
        self._unsure_since: float | None = None  # when the first ask was sent whose answer never came
        self._failing_since: float | None = None  # when the first step was begun that failed
        self._failed_at: float | None = None  # when it did
        self._busy: Busy | None = None  # the last answer

    async def once(self) -> tuple[Grant, float] | Busy:
        """Ask, without a ticket."""
        try:
            return await self._attempt()
        except BaseException as error:
            await self._leave(error)
            raise

    async def wait(self) -> tuple[Grant, float]:
        """Ask until it is granted, in line with the others of this client; `NotAcquired` at the deadline."""
        turns, name = self._client.turns, self.ask.name
        place = turns.place()
        try:
            turns.join(name, place)
            while True:  # with its condition here, Ctrl-C could come past this `try`: tests/test_loops.py
                if not await turns.reach(place, self._deadline) or self._deadline.passed():
                    raise self.refused()
                self._client.enter()  # it may have been closed while we waited
                self.ask = self.ask._replace(queue=True)
                answer = await self._attempt()
                if not isinstance(answer, Busy):
                    return answer
                await self._pause(answer)
        except BaseException as error:
            await self._leave(error)
            raise
        finally:
            try:
                turns.leave(name, place)
            except BaseException:  # Ctrl-C
                turns.leave(name, place)
                raise

    def refused(self) -> NotAcquired:
        """The error that says who has it instead."""
        holder, why = (self._busy.holder, self._busy.why) if self._busy else (None, "")
        return NotAcquired(self.ask.name, holder, self._client.runtime.now() - self._started, why)

    async def _attempt(self) -> tuple[Grant, float] | Busy:
        """Ask until there is an answer. A grant comes with the moment from which its ttl counts."""
        while True:
            now = self._client.runtime.now()
            sent_at = now if self._unsure_since is None else self._unsure_since
            try:
                answer = await self._grant(self.ask, self._step_budget())
            except StoreUnavailable as error:
                if isinstance(error, OutcomeUnknown):
                    self._unsure_since = sent_at
                await self._bear(error, now)
                self._client.enter()  # it may have been closed meanwhile
                continue
            self._failing_since = self._failed_at = self._unsure_since = None
            if isinstance(answer, Busy):
                self._busy = answer
                return answer
            if self._client.runtime.now() < valid_until(sent_at, answer.ttl):
                return answer, sent_at
            # It was granted too long ago to be of use: give it back, and ask anew under a new token.
            await self._give_back()
            if self._deadline.passed():
                raise self.refused()
            token, part = self._client.runtime.token(), part_of(self.ask.token)
            self.ask = self.ask._replace(token=token if part is None else part.token(token))

    async def _bear(self, error: StoreUnavailable, began: float) -> None:
        """Pause before the next try, or give up: a newcomer is told at once, a waiter survives a blip.

        The step that failed was begun at *began*. It may have hung since then, and that was no blip.
        """
        now = self._client.runtime.now()
        if self._failing_since is None or self._failed_at is None:
            self._failing_since, self._failed_at = began, now
        failing = now - self._failing_since
        resolves = isinstance(error, OutcomeUnknown) and now - self._failed_at < min(1.0, self._ttl / 3)
        waits = self._busy is not None and self.ask.queue
        if self._deadline.passed():
            raise self.refused() if waits and failing < BLIP else error
        if not resolves and not (waits and failing < PATIENCE):
            raise error
        await self._client.runtime.sleep(min(self._deadline.left(), 0.05 + 0.05 * self._client.runtime.random()))

    async def _pause(self, busy: Busy) -> None:
        jitter = 0.01 * self._client.runtime.random()
        longest = min(LONGEST_WAIT, self._deadline.look_every)
        within = min(self._deadline.left(), max(busy.retry_in, 0.001) + jitter, longest)
        try:
            await self._client.store.wait(self.ask, busy, within)
        except StoreUnavailable as error:
            await self._bear(error, self._client.runtime.now())

    def _step_budget(self) -> float:
        """What one request may take: what is left, and a part of the ttl; a single try may take that part."""
        longest = min(LONGEST_STEP, self._ttl / 2)
        return min(self._deadline.left(PARTING), longest) if self._timeout else longest

    async def _leave(self, error: BaseException) -> None:
        """Give back what may have been taken, and the ticket."""
        if isinstance(error, Misuse | Recorded) and self._busy is None and self._unsure_since is None:
            return  # refused before anything was sent, or answered with something else than a grant or a place in line
        if isinstance(error, StoreUnavailable):
            if self.ask.queue or isinstance(error, OutcomeUnknown) or self._unsure_since is not None:
                self._leave_to_keeper()
        elif isinstance(error, GeneratorExit):  # the coroutine is being closed: nothing can be awaited any more
            self._leave_to_keeper()
        elif isinstance(error, NotAcquired):
            if self.ask.queue:
                await self._give_back()
        else:
            await self._client.give_back(self.ask.name, self.ask.token, self._ttl)

    async def _give_back(self) -> None:
        """Give back in what is left of the budget, else in the background."""
        within = min(self._deadline.left(PARTING), RETURN_BUDGET)
        if within >= LEAST:
            await self._client.give_back(self.ask.name, self.ask.token, self._ttl, within=within)
        else:
            self._leave_to_keeper()

    def _leave_to_keeper(self) -> None:
        self._client.keeper.give_back(self.ask.name, self.ask.token, self._ttl)
