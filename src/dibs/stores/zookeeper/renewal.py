"""Renews leases: a quorum confirms that their nodes are there, for many in one request. What is not there is lost."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.store import Claim, settled
from dibs.stores.zookeeper.place import ZooKeeperPlace
from dibs.stores.zookeeper.places import ZooKeeperPlaces
from dibs.stores.zookeeper.port.requests import No, SessionEnded, check, read, sure, together
from dibs.stores.zookeeper.port.session import ZooKeeperSession

Answer = LossReason | StoreUnavailable | None

BATCH = 200
"""Leases that one request renews: with the longest names it has two thirds of the size that a server accepts."""


class ZooKeeperRenewals:
    """Renews the leases of one client."""

    def __init__(self, places: ZooKeeperPlaces, runtime: Runtime) -> None:
        self._places, self._runtime = places, runtime

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Renew *claims*, with one request for each session. For each claim: None, or why its lock is lost."""
        answers: list[Answer] = [None] * len(claims)
        by_session: dict[ZooKeeperSession, list[int]] = {}
        places = [self._places.held(claim) for claim in claims]
        for index, (claim, place) in enumerate(zip(claims, places, strict=True)):
            if place is None:
                answers[index] = self._places.reasons.get(claim.token, LossReason.TAKEN)
            else:
                by_session.setdefault(place.session, []).append(index)
        for session, indexes in by_session.items():
            for begin in range(0, len(indexes), BATCH):
                batch = indexes[begin : begin + BATCH]
                held = [(place, claims[index].ttl) for index in batch if (place := places[index]) is not None]
                for index, answer in zip(batch, await self._renew(session, held, until), strict=True):
                    answers[index] = answer
        return settled(answers)

    async def _renew(
        self, session: ZooKeeperSession, held: Sequence[tuple[ZooKeeperPlace, float]], until: float
    ) -> list[Answer]:
        """Ask the leader, which asks a quorum, whether all nodes are there. If not, it names the first that is not.

        The same answer tells who evicted whom, so an evicted holder learns its reason before anything else is asked.
        """
        try:
            checks = together(*(check(place.node) for place, _ in held))
            asked, evictions = await session.ask(until, checks, self._places.evictions())
            [checked] = sure([asked])
            if No.NODE not in checked:
                sure(checked)
        except SessionEnded:
            return [LossReason.SESSION_ENDED] * len(held)
        except StoreUnavailable as error:
            return [error] * len(held)
        if all(each is True for each in checked):
            for place, ttl in held:
                place.ends_at = max(place.ends_at, self._runtime.now() + ttl)
            return [None] * len(held)
        lost = self._losses([place for place, _ in held], checked, evictions)
        left = [place for place, _ in held if place not in lost]
        if left:
            lost |= await self._look(session, left, until)
        rest = [each for each in held if each[0] not in lost]
        renewed = iter(await self._renew(session, rest, until) if rest else [])
        return [lost[place] if place in lost else next(renewed) for place, _ in held]

    async def _look(
        self, session: ZooKeeperSession, places: Sequence[ZooKeeperPlace], until: float
    ) -> dict[ZooKeeperPlace, LossReason]:
        """Look in one step which of the other nodes are gone: there may be many. If it fails, renewals find out."""
        try:
            reads = [read(place.node) for place in places]
            *nodes, evictions = await session.ask(until, *reads, self._places.evictions())
        except StoreUnavailable:
            return {}
        return self._losses(places, nodes, evictions)

    def _losses(
        self, places: Sequence[ZooKeeperPlace], found: Sequence[object], evictions: object
    ) -> dict[ZooKeeperPlace, LossReason]:
        gone = [place for place, node in zip(places, found, strict=True) if node is No.NODE]
        return {place: self._places.lost(place, evictions) for place in gone}
