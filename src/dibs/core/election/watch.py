"""Who leads, one change after another, and that nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from dibs.core.copying import NotCopied
from dibs.errors import StoreUnavailable
from dibs.runtime import Runtime

if TYPE_CHECKING:
    from dibs.holder import Leader


class WatchedElection(Protocol):
    """What a watch needs of its election."""

    async def _stopped_within(self, seconds: float) -> bool:
        """Wait for *seconds*, or until the election is stopped; tell whether it was."""

    async def leader(self) -> Leader | None:
        """Who leads now."""


LATER = 0.01
"""Seconds after the end of a leader's lease at which it is worth looking whether it was renewed."""


class Leaders(NotCopied):
    """An iterator over the leaders of one election, as `Election.watch` returns it."""

    __slots__ = ("_election", "_every", "_nap", "_patience", "_runtime", "_term")

    _instead = "call watch() again"

    def __init__(self, runtime: Runtime, election: WatchedElection, every: float, patience: float) -> None:
        self._runtime, self._election, self._every, self._patience = runtime, election, every, patience
        self._term: int | None = None  # the one that was told last: 0 is nobody's, None is none yet
        self._nap = 0.0

    def __aiter__(self) -> Self:
        """The iterator itself."""
        return self

    def __repr__(self) -> str:
        return f"<Leaders of {self._election!r}>"

    async def __anext__(self) -> Leader | None:
        """Wait for the next change: who leads now, None if nobody does."""
        heard_at = self._runtime.now()
        while not await self._election._stopped_within(self._nap):
            try:
                leader = await self._election.leader()
            except StoreUnavailable:  # which says nothing about who leads
                self._nap = self._every
                if self._runtime.now() > heard_at + self._patience:
                    raise
                continue
            heard_at, self._nap = self._runtime.now(), self._until_the_next(leader)
            told, self._term = self._term, 0 if leader is None else leader.term
            if self._term != told:
                return leader
        raise StopAsyncIteration

    def _until_the_next(self, leader: Leader | None) -> float:
        """A leader that died is missed when its lease ends, not at the next look that happens to come."""
        ends_in = None if leader is None else leader.holder.expires_in
        return self._every if ends_in is None else min(self._every, ends_in + LATER)
