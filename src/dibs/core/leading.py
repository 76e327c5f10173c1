"""One block that leads: campaign, work for a term, stop the work, and only then give the place up."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from dibs.core.term import Term
from dibs.errors import LeaseLost, Misuse

if TYPE_CHECKING:
    from dibs.core.election import Election


class Leading:
    """One block of a leader, as `Election.lead` returns it. Make a new one for each block."""

    __slots__ = ("_election", "_term", "_timeout")

    def __init__(self, election: Election, timeout: float | None) -> None:
        self._election, self._timeout = election, timeout
        self._term: Term | None = None

    async def __aenter__(self) -> Term:
        """Wait until this candidate leads; from then on the end of the term cancels the body (async code)."""
        if self._term is not None:
            raise Misuse(f"this block of the election {self._election.name!r} was entered already; call lead() again")
        lease = await self._election.campaign(self._timeout)
        try:
            term = self._term = self._election.won(lease)
        except BaseException:
            lease.leave()
            raise
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the place up: the work has stopped. `LeaseLost` if the term was over before it had."""
        term = self._term
        if term is None:
            raise Misuse(f"the block of the election {self._election.name!r} is left without having been entered")
        cut = term.end(exc)
        self._election.left(term)
        own = None if cut else exc
        await term.lease.__aexit__(type(own) if own else None, own, trace)
        reason = term.lost_reason
        if reason is not None:
            lost = LeaseLost(term.name, term.fence, reason)
            if own is None:
                raise lost
            own.add_note(str(lost))

    def abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block had not begun or was about to end: give the place up."""
        if self._term is not None and not isinstance(error, Misuse):  # that is a block inside, which goes on
            self._term.end(None)
            self._election.left(self._term)
            self._term.lease.leave()
