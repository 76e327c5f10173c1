"""One block that leads: campaign, work for a term, stop the work, and only then give the place up."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from dibs.core.copying import NotCopied
from dibs.core.election.term import Term
from dibs.core.lease import Lease, leave
from dibs.errors import LeaseLost, Misuse


class Candidacy(Protocol):
    """What a block needs of its election."""

    name: str

    async def _campaign(self, timeout: float | None, taken: list[Lease]) -> Lease:
        """Wait for the place."""

    def _won(self, lease: Lease) -> Term:
        """Begin the term that *lease* is for."""

    def _left(self, term: Term) -> None:
        """The work of *term* has stopped."""


class Leading(NotCopied):
    """One block of a leader, as `Election.lead` returns it. Make a new one for each block."""

    __slots__ = ("_election", "_taken", "_term", "_timeout")

    _instead = "call lead() for each block"

    def __init__(self, election: Candidacy, timeout: float | None) -> None:
        self._election, self._timeout = election, timeout
        self._term: Term | None = None
        self._taken: list[Lease] = []

    async def __aenter__(self) -> Term:
        """Wait until this candidate leads; from then on the end of the term cancels the body (async code)."""
        if self._term is not None:
            raise Misuse(f"this block of the election {self._election.name!r} was entered already; call lead() again")
        lease = await self._election._campaign(self._timeout, self._taken)
        try:
            term = self._term = self._election._won(lease)
        except BaseException:
            lease._leave()
            raise
        return term

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the place up: the work has stopped. `LeaseLost` if the term was over before it had."""
        term = self._term
        if term is None:
            raise Misuse(f"the block of the election {self._election.name!r} is left without having been entered")
        cut = term._end(exc)
        self._election._left(term)
        own = None if cut else exc
        try:
            await term._lease.__aexit__(type(own) if own else None, own, trace)
        finally:
            term._learn()
        reason = term.lost_reason
        if reason is not None:
            lost = LeaseLost(term.name, term.fence, reason)
            if own is None:
                raise lost
            if str(lost) not in getattr(own, "__notes__", ()):
                own.add_note(str(lost))

    def __repr__(self) -> str:
        return f"<Leading in {self._election!r}>"

    def _abandon(self, error: BaseException) -> None:
        """*error*, perhaps Ctrl-C, came when the block had not begun or was about to end: give the place up."""
        if isinstance(error, Misuse):  # that is a block inside, which goes on
            return
        if self._term is not None:
            self._term._end(None)
            self._election._left(self._term)
        leave(self._taken)
