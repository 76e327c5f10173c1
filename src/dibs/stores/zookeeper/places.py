"""The places of one client in the queues, by token, and how it learns that one of them is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.errors import LeaseLost, LossReason, StoreUnavailable
from dibs.holder import here
from dibs.runtime import Runtime
from dibs.stores.store import Ask, Claim
from dibs.stores.zookeeper.facts import evictions_in
from dibs.stores.zookeeper.paths import Paths
from dibs.stores.zookeeper.place import ZooKeeperPlace
from dibs.stores.zookeeper.port.requests import No, Request, read
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.states import WatchEvent

GLANCE = 0.002
"""Seconds between two looks whether another step for the same token is done."""

REMEMBERED = 10_000
"""Lost tokens whose reason is remembered until their owner asks."""


class ZooKeeperPlaces:
    """The places of one client, by token."""

    def __init__(self, paths: Paths, runtime: Runtime, wake: Callable[[], None]) -> None:
        self._paths, self._runtime, self._wake = paths, runtime, wake
        self._mutex = runtime.mutex()
        self.all: dict[str, ZooKeeperPlace] = {}
        self.reasons: dict[str, LossReason] = {}
        """Why a token lost its lock; forgotten when its owner asks."""
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Called at each loss, at once, with name, token and reason."""

    # --- coming and going --------------------------------------------------------------------------------------

    def add(self, ask: Ask, session: ZooKeeperSession, until: float) -> ZooKeeperPlace:
        """A new place for *ask*, attended until *until*."""
        me = here(self._runtime.pid(), ask.name, ask.note)
        place = ZooKeeperPlace(ask, self._paths.parent(ask.name), session, me, self._runtime.event(), self._wake, until)
        self.all[ask.token] = place
        return place

    async def attended(self, token: str, until: float) -> ZooKeeperPlace | None:
        """The place of *token*, for the caller alone: two steps at once would undo each other's work."""
        while True:
            with self._mutex:
                place = self.all.get(token)
                if place is None:
                    return None
                if not place.attendance.is_going_on(self._runtime.now()):
                    place.attendance.begin(until)
                    return place
            if self._runtime.now() >= until:
                raise StoreUnavailable(place.session.source.shown, "another step for the same token is going on")
            await self._runtime.sleep(GLANCE)

    def drop(self, place: ZooKeeperPlace) -> None:
        """Forget *place*: nothing of it is left on the servers."""
        place.look_away()
        self.all.pop(place.token, None)

    def remember(self, token: str, reason: LossReason) -> None:
        """Keep why *token* lost its lock until its owner asks."""
        while len(self.reasons) >= REMEMBERED:
            self.reasons.pop(next(iter(self.reasons)))
        self.reasons[token] = reason

    # --- losing ------------------------------------------------------------------------------------------------

    def node(self, claim: Claim) -> str:
        """The path of the node of *claim*; raises `LeaseLost` if the lease is known to be lost."""
        place = self.held(claim)
        if place is None:
            raise LeaseLost(claim.name, claim.fence, self.reasons.get(claim.token, LossReason.TAKEN))
        return place.node

    def held(self, claim: Claim) -> ZooKeeperPlace | None:
        """The place that holds for *claim*; None if the lease is known to be lost."""
        place = self.all.get(claim.token)
        if place is None or not place.holds:
            return None
        return place if (place.name, place.fence) == (claim.name, claim.fence) else None

    async def watch_nodes(self, session: ZooKeeperSession, places: Sequence[ZooKeeperPlace], until: float) -> None:
        """Watch the nodes: the servers tell us when one is deleted. Places whose node is gone already are lost."""
        reads = [read(place.node, place.node_changed) for place in places]
        try:
            await session.connected(until)
            for place in places:
                place.note_watch(WatchEvent.SENT)
            *nodes, evictions = await session.ask(until, *reads, self.evictions())
        except StoreUnavailable as error:
            nodes, evictions = [error] * len(places), None
        for place, node in zip(places, nodes, strict=True):
            gone = node is No.NODE  # what we have once seen there, no server shows as not yet there
            if isinstance(node, StoreUnavailable):
                place.note_watch(WatchEvent.FAILED)
                gone = place.seen_deleted  # no answer now, but the watch has told us before
            if gone and not place.is_left:
                self.lost(place, evictions)

    def evictions(self) -> Request:
        """The request for the evictions: sent together with the question whether a node is there."""
        return read(self._paths.evictions)

    def lost(self, place: ZooKeeperPlace, evictions: object) -> LossReason:
        """The node of *place* is gone: forget the place, remember why, and tell its holder now."""
        reason = self.why(place, evictions)
        self.ended(place, reason)
        return reason

    def ended(self, place: ZooKeeperPlace, reason: LossReason) -> None:
        """Forget *place*, remember *reason*, and tell its holder."""
        self.drop(place)
        self.report(place, reason)

    def report(self, place: ZooKeeperPlace, reason: LossReason) -> None:
        """Remember why the holder of *place* lost its lock, and tell it."""
        self.remember(place.token, reason)
        if self.tell is not None:
            self.tell(place.name, place.token, reason)

    def why(self, place: ZooKeeperPlace, evictions: object) -> LossReason:
        """Why the node of *place* is gone. *evictions* is what the servers answered; it may be an error."""
        if place.is_over:
            return LossReason.SESSION_ENDED
        return LossReason.EVICTED if evictions_in(evictions).includes(place.name, place.fence) else LossReason.TAKEN
