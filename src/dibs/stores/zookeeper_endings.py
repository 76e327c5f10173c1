"""How places end without being given back: a session that ended, an eviction, a ttl that is over, a lost waiter."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from dibs.errors import LossReason, StoreUnavailable
from dibs.ports.zookeeper import Session
from dibs.runtime import Event, Job, Runtime
from dibs.stores.zookeeper_giving import Giving
from dibs.stores.zookeeper_place import Place
from dibs.stores.zookeeper_places import Places

ABSENT = 1.0
"""Seconds without asking or waiting after which a waiter loses its place: nobody behind it would be served."""

NAP = 0.5
"""Seconds after which the watch looks at the clock again."""

IDLE = 20
"""Naps without a place after which the watch ends: it costs nothing to keep, and 0.1 ms to begin."""

MOST = 500
"""Nodes that are minded in one step."""

STEP = 0.5
"""Seconds for one request of the watch."""


class Endings:
    """Watches the places of one client while there are any."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._mutex = runtime, runtime.mutex()
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Who wants to know at once."""
        self._bell: Event | None = None  # made with the job: an event may need a running loop
        self._job: Job | None = None
        self._closed = False

    def ring(self) -> None:
        """A session has ended; called in another thread."""
        if self._bell is not None:
            self._bell.set()

    def watch(self, giving: Giving) -> None:
        """Look after the places of *giving* until there have been none for a while."""
        if self._job is None:
            with self._mutex:
                if self._job is None and not self._closed:
                    self._bell = self._runtime.event()
                    self._job = self._runtime.spawn(lambda: self._run(giving), "dibs sessions")

    async def close(self) -> None:
        """Stop watching, and wait for that."""
        job = self._job
        self.stop()
        if job is not None:
            await job.join(2 * STEP)

    def stop(self) -> None:
        """Stop watching."""
        self._closed = True
        self.ring()

    async def _run(self, giving: Giving) -> None:
        places, idle = giving.places, 0
        try:
            while not self._closed and idle < IDLE:
                await self._nap(places)
                for place in list(places.all.values()):
                    if not self._closed:
                        await self._look(giving, place)
                await self._mind(places)
                idle = 0 if places.all else idle + 1
        finally:
            self._job = None

    async def _nap(self, places: Places) -> None:
        assert self._bell is not None
        now = self._runtime.now()
        ends = [place.ends_at - now for place in list(places.all.values()) if place.granted]
        await self._bell.wait(max(0.01, min([NAP, *ends])))
        self._bell.clear()

    async def _look(self, giving: Giving, place: Place) -> None:
        places, now = giving.places, self._runtime.now()
        if place.owner and place.is_over:
            self._session_ended(places, place)
        elif not place.is_forsaken(now):
            return
        elif place.granted and not place.left and place.ends_at <= now:
            places.remember(place.token, LossReason.EXPIRED)
            await self._delete(giving, place)
        elif place.left or (not place.granted and place.seen_at + ABSENT <= now):
            await self._delete(giving, place)

    async def _mind(self, places: Places) -> None:
        """Be told when somebody deletes a node of ours, once it has been held for a while: most are not so long."""
        old = self._runtime.now() - NAP
        by_session: dict[Session, list[Place]] = {}
        for place in list(places.all.values()):
            if place.granted and not place.left and (place.doubtful or (not place.minded and place.seen_at <= old)):
                by_session.setdefault(place.session, []).append(place)
        for session, unminded in by_session.items():
            with contextlib.suppress(StoreUnavailable):
                lost = await places.mind(session, unminded[:MOST], self._runtime.now() + STEP)
                for place, reason in lost.items():
                    self._tell(place, reason)

    def _tell(self, place: Place, reason: LossReason) -> None:
        if self.tell is not None:
            self.tell(place.name, place.token, reason)

    def _session_ended(self, places: Places, place: Place) -> None:
        if not place.is_forsaken(self._runtime.now()):
            place.call()  # a waiter lines up anew
            return
        places.drop(place)
        if place.granted and not place.left:
            places.remember(place.token, LossReason.SESSION_ENDED)
            self._tell(place, LossReason.SESSION_ENDED)

    async def _delete(self, giving: Giving, place: Place) -> None:
        with contextlib.suppress(StoreUnavailable):  # the next look tries again, until the session has ended
            await giving.release(place.token, self._runtime.now() + STEP)
