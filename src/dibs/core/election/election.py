"""An election as one candidate sees it: campaign, lead for a term, step down, and who leads now.

The place is a lock of the same name, so everything that is known of locks is true of it: one lease, one fence, one
keeper. What an election adds is the order at the end of a term: stop the work, go on renewing until it has stopped,
and only then give the place up. (Kubernetes' client-go has the three lengths of time, and warns of giving the place up
while work still runs.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from dibs.core.checks import Seconds, checked_length, checked_name, checked_timeout, shown
from dibs.core.copying import NotCopied
from dibs.core.deadline import Deadline
from dibs.core.deferred import awaitable, check_at_once, done
from dibs.core.election.block import Leading
from dibs.core.election.term import Term, TermLoss
from dibs.core.election.timings import Timings
from dibs.core.election.watch import Leaders
from dibs.core.lease import Lease
from dibs.core.lock import Lock
from dibs.errors import LeaseLost, LossReason, Misuse, NotAcquired, StoreUnavailable
from dibs.holder import LEADS, Leader, here
from dibs.log import logger

if TYPE_CHECKING:
    from dibs.core.context import Context
    from dibs.runtime import Event

NOTICED_AFTER = 1.0
"""Seconds within which a candidate that campaigns notices that it is to stop."""


class Election(NotCopied):
    """One candidate in the election of the leader called *name*, made by `Client.election`.

    Unlike a lock it has a state: whether it leads, and whether it was stopped. Make one in each process.
    """

    _instead = "make one in each process"

    name: str
    """What is led."""

    def __init__(self, context: Context, name: str, timings: Timings, candidate: str, on_stuck: str) -> None:
        self._context, self._timings = context, timings
        self.name, self._candidate, self._on_stuck = name, candidate, on_stuck
        self._lost: TermLoss | None = None  # of the term that goes on; not the term, which would keep its lease alive
        self._pid = 0  # whose term that is
        self._campaigns: set[Deadline] = set()
        self._leading: Leading | None = None
        self._stopped = False
        self._waiting: set[Event] = set()  # of those who wait for the next round, and are woken when it is stopped

    # --- what users call -----------------------------------------------------------------------------------

    @property
    def candidate(self) -> str:
        """What this candidate is called: by default its host and pid."""
        who = here(self._context.runtime.pid(), self.name, "")
        return self._candidate or f"{who.host}:{who.pid}"

    def lead(self, *, timeout: Seconds | None = None) -> Leading:
        """Wait to lead, at most *timeout* seconds, and lead for the length of a ``with`` block, which gets the `Term`.

        When the term ends, the body of ``async with`` is cancelled; blocking code is told by ``term.lost``. The lease
        is renewed until the body has ended, and given back only then. Leaving the block after the end of its term
        raises `LeaseLost`, unless the body raises something of its own. Entering raises `NotAcquired` when the time is
        up or the election is stopped, and `StoreUnavailable`.
        """
        return Leading(self, checked_timeout(timeout))

    async def run(self, work: Callable[[Term], Awaitable[object]]) -> None:
        """Call *work* with the `Term` whenever this candidate leads, and campaign again after each term, until `stop`.

        When a term ends, the call is cancelled (async) or told by ``term.lost`` (blocking). A call that returns steps
        down. What it raises comes out of here, when the place has been given up. An outage of the store is logged and
        waited out. Work that would begin only after the call, such as a generator, is `Misuse`.
        """
        check_at_once(work)
        while not self._stopped:
            await self._serve(work)
            self._leading = None  # its place was given up; not before: see `_abandon`
            await self._pause()

    def is_leader(self) -> float:
        """Seconds for which this candidate certainly leads if no renewal succeeds; 0 when it does not.

        Never a plain yes: it would be wrong a moment later. What has to be certain compares the fence.
        """
        lost = self._lost
        return lost._left() if lost is not None and self._pid == self._context.runtime.pid() else 0.0

    async def leader(self) -> Leader | None:
        """Who leads now, by the store; None if the place is vacant. It may have changed when you read it."""
        holder = (await self._context.show(self.name)).holder
        return None if holder is None else Leader.of(holder)

    def watch(self, *, every: Seconds | None = None) -> Leaders:
        """Iterate who leads: first who does now, then each change, and None whenever the place is vacant.

        The store is asked *every* so many seconds (*retry* by default), so what was shorter than that may be missed.
        It ends when the election is stopped, and raises `StoreUnavailable` when nothing was heard for a whole ttl.
        """
        pause = self._timings.retry if every is None else checked_length(every, "every")
        return Leaders(self._context.runtime, self, pause, self._timings.ttl)

    def stop(self) -> None:
        """Step down, and do not campaign any more: work is told to stop, and the place is given up when it has.

        It returns at once; `run` returns when the work has stopped. It may be called from any thread, or from a signal
        handler; of async code, in its event loop. It is final: for another candidacy make another election.
        """
        self._stopped = True
        for deadline in list(self._campaigns):
            deadline.bring_forward()
        if self._lost is not None:
            self._lost._happen(LossReason.STEPPED_DOWN)
        for event in list(self._waiting):
            event.set()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"is_leader={self.is_leader():.3f}"
        return f"<Election {self.name!r} candidate={self.candidate!r} {state}>"

    # --- for the block and the watch -------------------------------------------------------------------------

    async def _stopped_within(self, seconds: float) -> bool:
        """Wait until it is told to stop, at most so many seconds; tell whether it was."""
        if self._stopped or seconds <= 0:
            return self._stopped
        event = self._context.runtime.event()
        self._waiting.add(event)  # before we look again: `stop` says so first, and then wakes
        try:
            return self._stopped or await event.wait(seconds)
        finally:
            self._waiting.discard(event)

    async def _campaign(self, timeout: float | None, taken: list[Lease]) -> Lease:
        """Wait for the place; the lease is in *taken* as soon as it exists, as with `Lock.take`."""
        if self._stopped:
            raise Misuse(f"this candidate in the election {self.name!r} was stopped; make another with client.election")
        note = LEADS + self.candidate
        lock = Lock(self._context, self.name, self._timings.ttl, None, note, None, "flag")
        deadline = Deadline(self._context.runtime.now, timeout, look_every=NOTICED_AFTER)
        self._campaigns.add(deadline)
        try:
            return await lock._take(timeout, taken, deadline)
        finally:
            self._campaigns.discard(deadline)

    def _won(self, lease: Lease) -> Term:
        """Make the term of *lease*, and let its end stop the work of the current thread or task."""
        term = Term(self._context, lease, self.candidate, self._timings.grace)
        term._begin(self._context.runtime, self._timings, self._on_stuck)
        self._lost, self._pid = term.lost, self._context.runtime.pid()
        if self._stopped:  # meanwhile
            term.lost._happen(LossReason.STEPPED_DOWN)
        return term

    def _left(self, term: Term) -> None:
        """The work of *term* has stopped."""
        if self._lost is term.lost:
            self._lost = None

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came out of `run`: nothing is held on."""
        if self._leading is not None:
            self._leading._abandon(error)

    # --- one round of run --------------------------------------------------------------------------------------

    async def _serve(self, work: Callable[[Term], Awaitable[object]]) -> None:
        leading = self._leading = self.lead()
        try:
            term = await leading.__aenter__()
        except NotAcquired:
            return  # stopped
        except StoreUnavailable as error:
            logger().warning("%r does not campaign for %r for the moment: %s", self.candidate, self.name, error)
            return
        try:
            await _served(leading, term, work)
        except LeaseLost as lost:
            if (lost.name, lost.fence) != (term.name, term.fence):
                raise  # of another lock, and the caller's own affair
            if lost.reason is not LossReason.STEPPED_DOWN:
                logger().warning("the term of %r ended: %s", self.candidate, lost)

    async def _pause(self) -> None:
        """Let others have a chance, and a store that fails some peace; not all at the same moment."""
        await self._stopped_within(self._timings.retry * (0.5 + self._context.runtime.random()))


def checked_candidate(candidate: object, on_stuck: object) -> tuple[str, str]:
    """Return both if they can be right."""
    if on_stuck not in ("log", "exit"):
        raise Misuse(f'on_stuck={shown(on_stuck)}: it is "log" or "exit"')
    if candidate != "":
        checked_name(f"{LEADS}{checked_name(candidate, 'candidate')}", "candidate")  # it has to fit into the note
    return str(candidate), str(on_stuck)


async def _served(leading: Leading, term: Term, work: Callable[[Term], Awaitable[object]]) -> None:
    try:
        done(await awaitable(work(term), work), work)
    except BaseException as error:
        await leading.__aexit__(type(error), error, error.__traceback__)
        raise
    await leading.__aexit__(None, None, None)
