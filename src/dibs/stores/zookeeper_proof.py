"""The word of a quorum that places are still ours: for many in one request, and what becomes of those that are not."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.errors import LossReason, StoreUnavailable
from dibs.ports.zookeeper import Session
from dibs.ports.zookeeper_requests import No, SessionEnded, check, read, sure, together
from dibs.runtime import Runtime
from dibs.stores.store import Claim, settled
from dibs.stores.zookeeper_places import Places

Answer = LossReason | StoreUnavailable | None

BATCH = 200
"""Leases that are renewed by one request: with the longest names it has two thirds of what a server accepts."""


class Proofs:
    """The renewals of one client."""

    def __init__(self, places: Places, runtime: Runtime) -> None:
        self._places, self._runtime = places, runtime

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """One request for all that are in one session."""
        answers: list[Answer] = [None] * len(claims)
        by_session: dict[Session, list[int]] = {}
        for index, claim in enumerate(claims):
            place = self._places.held(claim)
            if place is None:
                answers[index] = self._places.reasons.get(claim.token, LossReason.TAKEN)
            else:
                by_session.setdefault(place.session, []).append(index)
        for session, indexes in by_session.items():
            for begin in range(0, len(indexes), BATCH):
                part = indexes[begin : begin + BATCH]
                found = await self._prove(session, [claims[index] for index in part], until)
                for index, answer in zip(part, found, strict=True):
                    answers[index] = answer
        return settled(answers)

    async def _prove(self, session: Session, claims: Sequence[Claim], until: float) -> list[Answer]:
        """The leader says with a quorum that all their nodes are there, or which are not."""
        places = [self._places.all[claim.token] for claim in claims]
        try:
            [proof] = sure(await session.ask(until, together(*(check(place.node) for place in places))))
            if all(each is True for each in proof):
                for place, claim in zip(places, claims, strict=True):
                    place.ends_at = max(place.ends_at, self._runtime.now() + claim.ttl)
                return [None] * len(claims)
            nodes = sure(await session.ask(until, *(read(place.node) for place in places)))
            answers: list[Answer] = [
                await self._places.lost(place, until) if node is No.NODE else None
                for place, node in zip(places, nodes, strict=True)
            ]
        except SessionEnded:
            return [LossReason.SESSION_ENDED] * len(claims)
        except StoreUnavailable as error:
            return [error] * len(claims)
        rest = iter(await self._prove(session, [c for c, a in zip(claims, answers, strict=True) if a is None], until))
        return [next(rest) if answer is None else answer for answer in answers]
