"""Watches for places that end without a release: their session or ttl ended, they were evicted, their waiter left."""

from __future__ import annotations

import contextlib
import math

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.watch import WatchLoop
from dibs.stores.zookeeper.place import ZooKeeperPlace
from dibs.stores.zookeeper.places import ZooKeeperPlaces
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.release import ZooKeeperReleases
from dibs.stores.zookeeper.states import IllegalTransition, WatchState

ABSENT = 1.0
"""Seconds after which a waiter that neither asks nor waits loses its place: it would block all behind it."""

NAP = 0.5
"""Seconds between two looks of the watch, at most."""

MOST = 500
"""The most nodes that one step begins to watch."""

STEP = 0.5
"""Seconds that a request of the watch may take."""


class ZooKeeperWatch:
    """Watches the places of one client while there are any."""

    def __init__(self, loop: WatchLoop, places: ZooKeeperPlaces, releases: ZooKeeperReleases, runtime: Runtime) -> None:
        self._loop, self._places, self._releases, self._runtime = loop, places, releases, runtime

    def start(self) -> None:
        """Watch the places until there have been none for a while."""
        self._loop.start(self)

    async def close(self) -> None:
        """Stop watching, and wait for that."""
        self._loop.stop()
        await self._loop.join(2 * STEP)

    # --- what the loop asks for ----------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether there is no place."""
        return not self._places.all

    def next_end(self) -> float:
        """When the first grant ends unless it is renewed."""
        return min((place.ends_at for place in list(self._places.all.values()) if place.is_granted), default=math.inf)

    async def look(self) -> None:
        """Give up each place that is over, and let the servers watch the nodes of those that stay."""
        for place in list(self._places.all.values()):
            if not self._loop.closed:
                await self._look_at(place)
        await self._watch_nodes()

    # ---------------------------------------------------------------------------------------------------------

    async def _look_at(self, place: ZooKeeperPlace) -> None:
        places, now = self._places, self._runtime.now()
        if place.owner and place.is_over:
            await self._session_ended(place)
        elif not place.attendance.is_over(now):
            return
        elif place.holds and place.ends_at <= now:
            places.remember(place.token, LossReason.EXPIRED)
            await self._delete(place)
        elif place.is_left or (not place.is_granted and place.attendance.seen_at + ABSENT <= now):
            await self._delete(place)

    async def _watch_nodes(self) -> None:
        """Let the servers tell us when a holder's node is deleted. Only for locks held for a while: most are short."""
        old = self._runtime.now() - NAP
        by_session: dict[ZooKeeperSession, list[ZooKeeperPlace]] = {}
        for place in list(self._places.all.values()):
            is_due = place.watch_state is WatchState.UNSET and place.attendance.seen_at <= old
            if place.holds and (is_due or place.watch_state is WatchState.FIRED):
                by_session.setdefault(place.session, []).append(place)
        for session, unwatched in by_session.items():
            await self._places.watch_nodes(session, unwatched[:MOST], self._runtime.now() + STEP)

    async def _session_ended(self, place: ZooKeeperPlace) -> None:
        places = self._places
        if not place.attendance.is_over(self._runtime.now()):
            place.call()  # a waiter lines up anew
        elif place.is_unsure:  # its node may be in a session that lives: the release looks for it
            if place.holds:
                places.report(place, LossReason.SESSION_ENDED)
            await self._delete(place)
        elif place.holds:
            places.lost(place, None)
        else:
            places.drop(place)

    async def _delete(self, place: ZooKeeperPlace) -> None:
        # The next look tries again, until the session has ended; also if a step that stood still came in between.
        with contextlib.suppress(StoreUnavailable, IllegalTransition):
            await self._releases.release(place.token, self._runtime.now() + STEP)
