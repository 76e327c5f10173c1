"""One term of a leader: a lease, and the moment at which the work has to stop while that lease is still valid.

The term is over before its lease is: when no renewal has succeeded for the *renew_deadline*, when the leader is asked
to step down, or when the lease is lost. Then the work is told to stop, and the keeper goes on renewing the lease until
the work has stopped. So work that is slow to stop, or ignores it, still has the place to itself, as far as the store
can be reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.copying import NotCopied
from dibs.core.loss import Loss, LossHost
from dibs.core.work import Work
from dibs.errors import LeaseLost, LossReason

if TYPE_CHECKING:
    from dibs.core.election.timings import Timings
    from dibs.core.lease import Lease
    from dibs.runtime import Runtime


class TermLoss(Loss):
    """The end of a term, as a flag: ``if term.lost``, ``term.lost.wait(1)``.

    It comes *grace* seconds before the lease would end. It is as final as the loss of a lease: a renewal that succeeds
    later does not call back work that was told to stop.
    """

    __slots__ = ("_grace", "_lease")

    def __init__(self, host: LossHost, lease: Loss, grace: float) -> None:
        super().__init__(host, 0.0, 0.0, None)
        self._lease, self._grace = lease, grace
        lease._when_over(self._follow)

    @property
    def _deadline(self) -> float:
        """The moment at which the work is told to stop if no renewal succeeds."""
        return self._lease._deadline - self._grace

    def _left(self) -> float:
        """Seconds until then; 0 when the term is over."""
        return max(0.0, self._deadline - self._host.runtime.now()) if self._can_happen else 0.0

    def _follow(self) -> None:
        """The lease is over, and with it the term."""
        reason = self._lease._reason
        if reason is not None:
            self._happen(reason)
        else:
            self._settle()


class Term(NotCopied):
    """The time for which this candidate leads, as ``with election.lead()`` gives it.

    Do not start anything new when `lost` is set. The body of ``async with`` is then cancelled; blocking code asks.
    """

    __slots__ = ("__weakref__", "_lease", "_work", "candidate", "fence", "lost", "name")

    _instead = "the fence is what others may know of it"

    name: str
    """What is led."""
    candidate: str
    """Who leads."""
    fence: int
    """The number of the term: higher for every later leader. What the resource checks."""
    lost: TermLoss
    """Whether the term is over, as a flag: ``if term.lost``, ``term.lost.wait(1)``."""

    def __init__(self, host: LossHost, lease: Lease, candidate: str, grace: float) -> None:
        self._lease, self.candidate = lease, candidate
        self.name, self.fence = lease.name, lease.fence
        self.lost = TermLoss(host, lease.lost, grace)
        self._work: Work | None = None

    @property
    def lost_reason(self) -> LossReason | None:
        """Why the term is over; None as long as it is not."""
        return self.lost._reason

    def expires_in(self) -> float:
        """Seconds until the work has to stop if no renewal succeeds; 0 when the term is over."""
        return self.lost._left()

    def check(self) -> None:
        """Raise `LeaseLost` if the term is over, `Misuse` if its block was left. Costs no I/O.

        A process can be paused right after it: only a guard that compares the fence is exact.
        """
        reason = self.lost._reason
        if reason is not None:
            raise LeaseLost(self.name, self.fence, reason)
        self._lease.check()

    def __repr__(self) -> str:
        state = self.lost._reason or f"expires_in={self.expires_in():.3f}"
        return f"<Term {self.fence} of {self.name!r}, led by {self.candidate!r}, {state}>"

    # --- for the block ---------------------------------------------------------------------------------------

    def _begin(self, runtime: Runtime, timings: Timings, on_stuck: str) -> None:
        """The work begins: from now on the end of the term stops it."""
        title = f"the work of {self.candidate!r}, which leads {self.name!r} (term {self.fence}),"
        self._work = Work(runtime, self.lost, timings.stuck_after, on_stuck, title)

    def _learn(self) -> None:
        """The place was given up: a lease that was lost before that is why the term is over, whatever came first."""
        reason = self._lease.lost_reason
        if reason is not None:
            self.lost._found(reason)

    def _end(self, exc: BaseException | None) -> bool:
        """The work has stopped, with *exc*; tell whether that is how the end of the term stopped it."""
        cut = self._work is not None and self._work.end(exc)
        self.lost._settle()
        return cut
