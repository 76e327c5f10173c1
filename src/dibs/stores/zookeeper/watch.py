"""Watches for places that end without a release: their session or ttl ended, they were evicted, their waiter left."""

from __future__ import annotations

import contextlib

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Event, Job, Runtime
from dibs.stores.zookeeper.place import ZooKeeperPlace
from dibs.stores.zookeeper.places import ZooKeeperPlaces
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.release import ZooKeeperReleases
from dibs.stores.zookeeper.states import IllegalTransition, WatchState

ABSENT = 1.0
"""Seconds after which a waiter that neither asks nor waits loses its place: it would block all behind it."""

NAP = 0.5
"""Seconds after which the watch looks at the clock again."""

IDLE = 20
"""Naps without a place after which the watch ends; to begin it again takes 0.1 ms."""

MOST = 500
"""The most nodes that one step begins to watch."""

STEP = 0.5
"""Seconds that a request of the watch may take."""


class ZooKeeperWatch:
    """Watches the places of one client while there are any."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._mutex = runtime, runtime.mutex()
        self._wake_up: Event | None = None  # made with the job: an event may need a running loop
        self._job: Job | None = None
        self._closed = False

    def wake(self) -> None:
        """Let the watch look now. Another thread calls this, when a session has ended."""
        if self._wake_up is not None:
            self._wake_up.set()

    def watch(self, releases: ZooKeeperReleases) -> None:
        """Watch the places of *releases* until there have been none for a while."""
        if self._job is None:
            with self._mutex:
                if self._job is None and not self._closed:
                    self._wake_up = self._runtime.event()
                    self._job = self._runtime.spawn(lambda: self._run(releases), "dibs sessions")

    async def close(self) -> None:
        """Stop watching, and wait for that."""
        job = self._job
        self.stop()
        if job is not None:
            await job.join(2 * STEP)

    def stop(self) -> None:
        """Stop watching."""
        self._closed = True
        self.wake()

    async def _run(self, releases: ZooKeeperReleases) -> None:
        places, idle = releases.places, 0
        try:
            while not self._closed and idle < IDLE:
                await self._nap(places)
                for place in list(places.all.values()):
                    if not self._closed:
                        await self._look(releases, place)
                await self._watch_nodes(places)
                idle = 0 if places.all else idle + 1
        finally:
            self._job = None

    async def _nap(self, places: ZooKeeperPlaces) -> None:
        assert self._wake_up is not None
        now = self._runtime.now()
        ends = [place.ends_at - now for place in list(places.all.values()) if place.is_granted]
        await self._wake_up.wait(max(0.01, min([NAP, *ends])))
        self._wake_up.clear()

    async def _look(self, releases: ZooKeeperReleases, place: ZooKeeperPlace) -> None:
        places, now = releases.places, self._runtime.now()
        if place.owner and place.is_over:
            await self._session_ended(releases, place)
        elif not place.attendance.is_over(now):
            return
        elif place.holds and place.ends_at <= now:
            places.remember(place.token, LossReason.EXPIRED)
            await self._delete(releases, place)
        elif place.is_left or (not place.is_granted and place.attendance.seen_at + ABSENT <= now):
            await self._delete(releases, place)

    async def _watch_nodes(self, places: ZooKeeperPlaces) -> None:
        """Let the servers tell us when a holder's node is deleted. Only for locks held for a while: most are short."""
        old = self._runtime.now() - NAP
        by_session: dict[ZooKeeperSession, list[ZooKeeperPlace]] = {}
        for place in list(places.all.values()):
            is_due = place.watch_state is WatchState.UNSET and place.attendance.seen_at <= old
            if place.holds and (is_due or place.watch_state is WatchState.FIRED):
                by_session.setdefault(place.session, []).append(place)
        for session, unwatched in by_session.items():
            await places.watch_nodes(session, unwatched[:MOST], self._runtime.now() + STEP)

    async def _session_ended(self, releases: ZooKeeperReleases, place: ZooKeeperPlace) -> None:
        places = releases.places
        if not place.attendance.is_over(self._runtime.now()):
            place.call()  # a waiter lines up anew
        elif place.is_unsure:  # its node may be in a session that lives: the release looks for it
            if place.holds:
                places.report(place, LossReason.SESSION_ENDED)
            await self._delete(releases, place)
        elif place.holds:
            places.lost(place, None)
        else:
            places.drop(place)

    async def _delete(self, releases: ZooKeeperReleases, place: ZooKeeperPlace) -> None:
        # The next look tries again, until the session has ended; also if a step that stood still came in between.
        with contextlib.suppress(StoreUnavailable, IllegalTransition):
            await releases.release(place.token, self._runtime.now() + STEP)
