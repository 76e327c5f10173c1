"""The blocking faces of an election: its terms, its blocks, and whom it elected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from dibs._blocking.block import Block
from dibs._blocking.faces import faces
from dibs._blocking.lease import Loss
from dibs.core.checks import Seconds
from dibs.core.deferred import check_blocking, done
from dibs.core.election import block as _leading
from dibs.core.election import election as _election
from dibs.core.election import term as _term
from dibs.core.election import watch as _leaders
from dibs.errors import LossReason
from dibs.holder import Leader
from dibs.runtime import run


@faces(_term.Term)
class Term:
    """The time for which this candidate leads, as ``with election.lead()`` gives it.

    Do not start anything new when `lost` is set. The body of ``async with`` is then cancelled; blocking code asks.
    """

    __slots__ = ("_core",)

    def __init__(self, core: _term.Term) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is led."""
        return self._core.name

    @property
    def candidate(self) -> str:
        """Who leads."""
        return self._core.candidate

    @property
    def fence(self) -> int:
        """The number of the term: higher for every later leader. What the resource checks."""
        return self._core.fence

    @property
    def lost(self) -> Loss:
        """Whether the term is over, as a flag: ``if term.lost``, ``term.lost.wait(1)``."""
        return Loss(self._core.lost)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why the term is over; None as long as it is not."""
        return self._core.lost_reason

    def expires_in(self) -> float:
        """Seconds until the work has to stop if no renewal succeeds; 0 when the term is over."""
        return self._core.expires_in()

    def check(self) -> None:
        """Raise `LeaseLost` if the term is over, `Misuse` if its block was left. Costs no I/O.

        A process can be paused right after it: only a guard that compares the fence is exact.
        """
        self._core.check()

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_leading.Leading)
class Leading(Block):
    """One block of a leader, as `Election.lead` returns it. Make a new one for each block."""

    __slots__ = ()

    _core: _leading.Leading

    def __init__(self, core: _leading.Leading) -> None:
        self._core = core

    def __enter__(self) -> Term:
        """Wait until this candidate leads; from then on the end of the term cancels the body (async code)."""
        try:
            return Term(run(self._core.__aenter__()))
        except BaseException as error:
            self._core._abandon(error)
            raise

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_leaders.Leaders)
class Leaders:
    """An iterator over the leaders of one election, as `Election.watch` returns it."""

    __slots__ = ("_core",)

    def __init__(self, core: _leaders.Leaders) -> None:
        self._core = core

    def __iter__(self) -> Self:
        """The iterator itself."""
        return self

    def __next__(self) -> Leader | None:
        """Wait for the next change: who leads now, None if nobody does."""
        try:
            return run(self._core.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self._core)


@faces(_election.Election)
class Election:
    """One candidate in the election of the leader called *name*, made by `Client.election`.

    Unlike a lock it has a state: whether it leads, and whether it was stopped. Make one in each process.
    """

    def __init__(self, core: _election.Election) -> None:
        self._core = core

    @property
    def name(self) -> str:
        """What is led."""
        return self._core.name

    @property
    def candidate(self) -> str:
        """What this candidate is called: by default its host and pid."""
        return self._core.candidate

    def lead(self, *, timeout: Seconds | None = None) -> Leading:
        """Wait to lead, at most *timeout* seconds, and lead for the length of a ``with`` block, which gets the `Term`.

        When the term ends, the body of ``async with`` is cancelled; blocking code is told by ``term.lost``. The lease
        is renewed until the body has ended, and given back only then. Leaving the block after the end of its term
        raises `LeaseLost`, unless the body raises something of its own. Entering raises `NotAcquired` when the time is
        up or the election is stopped, and `StoreUnavailable`.
        """
        return Leading(self._core.lead(timeout=timeout))

    def run(self, work: Callable[[Term], object]) -> None:
        """Call *work* with the `Term` whenever this candidate leads, and campaign again after each term, until `stop`.

        When a term ends, the call is cancelled (async) or told by ``term.lost`` (blocking). A call that returns steps
        down. What it raises comes out of here, when the place has been given up. An outage of the store is logged and
        waited out. Work that would begin only after the call, such as a generator, is `Misuse`.
        """
        check_blocking(work, "election.run")
        try:
            run(self._core.run(_awaited(work)))
        except BaseException as error:
            self._core._abandon(error)
            raise

    def is_leader(self) -> float:
        """Seconds for which this candidate certainly leads if no renewal succeeds; 0 when it does not.

        Never a plain yes: it would be wrong a moment later. What has to be certain compares the fence.
        """
        return self._core.is_leader()

    def leader(self) -> Leader | None:
        """Who leads now, by the store; None if the place is vacant. It may have changed when you read it."""
        return run(self._core.leader())

    def watch(self, *, every: Seconds | None = None) -> Leaders:
        """Iterate who leads: first who does now, then each change, and None whenever the place is vacant.

        The store is asked *every* so many seconds (*retry* by default), so what was shorter than that may be missed.
        It ends when the election is stopped, and raises `StoreUnavailable` when nothing was heard for a whole ttl.
        """
        return Leaders(self._core.watch(every=every))

    def stop(self) -> None:
        """Step down, and do not campaign any more: work is told to stop, and the place is given up when it has.

        It returns at once; `run` returns when the work has stopped. It may be called from any thread, or from a signal
        handler; of async code, in its event loop. It is final: for another candidacy make another election.
        """
        self._core.stop()

    def __repr__(self) -> str:
        return repr(self._core)


def _awaited(work: Callable[[Term], object]) -> Callable[[_term.Term], Awaitable[object]]:
    async def call(term: _term.Term) -> object:
        return done(work(Term(term)), work)

    return call
