"""What one client has in its sessions: its places in line by their tokens, and how those end behind our back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.errors import LeaseLost, LossReason, StoreUnavailable
from dibs.holder import here
from dibs.ports.zookeeper import Session
from dibs.ports.zookeeper_requests import No, read
from dibs.runtime import Runtime
from dibs.stores.store import Ask, Claim
from dibs.stores.zookeeper_facts import broken
from dibs.stores.zookeeper_paths import Paths
from dibs.stores.zookeeper_place import Place

GLANCE = 0.002
"""Seconds between two looks whether a place is free of who looks after it right now."""

REMEMBERED = 10_000
"""Tokens whose loss is remembered until somebody asks."""


class Places:
    """The places of one client, by token."""

    def __init__(self, paths: Paths, runtime: Runtime, ring: Callable[[], None]) -> None:
        self._paths, self._runtime, self._ring = paths, runtime, ring
        self._mutex = runtime.mutex()
        self.all: dict[str, Place] = {}
        self.reasons: dict[str, LossReason] = {}
        """Why a token lost its lock; forgotten when its owner asks."""

    # --- coming and going --------------------------------------------------------------------------------------

    def add(self, ask: Ask, session: Session, until: float) -> Place:
        """A new place for *ask*, attended until *until*."""
        me = here(self._runtime.pid(), ask.name, ask.note)
        place = Place(ask, self._paths.parent(ask.name), session, me, self._runtime.event(), self._ring)
        place.attend(until)
        self.all[ask.token] = place
        return place

    async def attended(self, token: str, until: float) -> Place | None:
        """The place of *token*, which nobody else looks after until it is left: two would undo each other's work."""
        while True:
            with self._mutex:
                place = self.all.get(token)
                if place is None:
                    return None
                if not place.is_attended(self._runtime.now()):
                    place.attend(until)
                    return place
            if self._runtime.now() >= until:
                raise StoreUnavailable(place.session.source.shown, "another step for the same token is going on")
            await self._runtime.sleep(GLANCE)

    def drop(self, place: Place) -> None:
        """There is nothing of *place* any more."""
        place.look_away()
        self.all.pop(place.token, None)

    def remember(self, token: str, reason: LossReason) -> None:
        """Keep why *token* lost its lock, for whoever asks next."""
        while len(self.reasons) >= REMEMBERED:
            self.reasons.pop(next(iter(self.reasons)))
        self.reasons[token] = reason

    # --- losing ------------------------------------------------------------------------------------------------

    def node(self, claim: Claim) -> str:
        """The path of its node; `LeaseLost` if it is known to be over."""
        place = self.held(claim)
        if place is None:
            raise LeaseLost(claim.name, claim.fence, self.reasons.get(claim.token, LossReason.TAKEN))
        return place.node

    def held(self, claim: Claim) -> Place | None:
        """The place that *claim* names; None if it is over, as far as is known."""
        place = self.all.get(claim.token)
        if place is None or not place.granted or place.left:
            return None
        return place if (place.name, place.fence) == (claim.name, claim.fence) else None

    async def mind(self, session: Session, places: Sequence[Place], until: float) -> dict[Place, LossReason]:
        """Let the end of each node call us from now on; tell which have ended already, and why."""
        await session.connected(until)
        for place in places:
            place.minded, place.doubtful = True, False
        nodes = await session.ask(until, *(read(place.node, place.doubt) for place in places))
        lost = {}
        for place, node in zip(places, nodes, strict=True):
            if isinstance(node, StoreUnavailable):
                place.minded = False
            if node is No.NODE and not place.left:  # what we have once seen there, no server shows as not yet there
                lost[place] = await self.lost(place, until)
        return lost

    async def lost(self, place: Place, until: float) -> LossReason:
        """The node of *place* is gone: nothing is left of it here, but why."""
        reason = await self.why(place, until)
        self.drop(place)
        self.remember(place.token, reason)
        return reason

    async def why(self, place: Place, until: float) -> LossReason:
        """What ended a grant behind our back."""
        if place.is_over:
            return LossReason.SESSION_ENDED
        try:
            [node] = await place.session.ask(until, read(self._paths.broken))
        except StoreUnavailable:
            return LossReason.TAKEN
        eviction = broken(node).of(place.name)
        return LossReason.EVICTED if eviction and eviction.fence == place.fence else LossReason.TAKEN
