"""What one client holds, and the end of what it does not renew.

Many leases share a session, which lives as long as one of them is renewed. So a lease that is not renewed for its ttl,
since the program dropped it, is given back here; the server ends only what the whole client left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dibs.errors import LossReason
from dibs.runtime import Event, Job, Runtime
from dibs.stores.consul.keys import Keys
from dibs.stores.consul.sessions import ConsulSession

NAP = 1.0
"""Seconds after which the watch looks at the clock again."""

AGAIN = 0.1
"""Seconds after which it tries again to give back what could not be given back."""

IDLE = 20
"""Naps without a lease after which the watch ends: it costs nothing to keep, and 0.1 ms to begin."""

REMEMBERED = 10_000
"""Tokens whose loss is remembered until somebody asks."""


class Holding:
    """One grant."""

    __slots__ = ("ends_at", "fence", "index", "keys", "name", "session", "token")

    def __init__(self, name: str, token: str, keys: Keys, session: ConsulSession, fence: int, index: int) -> None:
        self.name, self.token, self.keys, self.session = name, token, keys, session
        self.fence = fence
        self.index = index  # of the key as it is now: another process that attaches to the lease writes it anew
        self.ends_at = 0.0


class Holdings:
    """All of them, by token."""

    def __init__(self, runtime: Runtime, give_up: Callable[[Holding], Awaitable[bool]]) -> None:
        """*give_up* gives one back whose ttl is over, and tells whether that is done."""
        self._runtime, self._give_up = runtime, give_up
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Who wants to know at once of a loss."""
        self.begin()

    def begin(self) -> None:
        """Hold nothing: at the start, and in a forked child."""
        self._mutex = self._runtime.mutex()
        self._all: dict[str, Holding] = {}
        self._reasons: dict[str, LossReason] = {}
        self._bell: Event | None = None
        self._job: Job | None = None
        self._next_at = 0.0
        self._closed = False

    def get(self, token: str) -> Holding | None:
        """What *token* holds."""
        return self._all.get(token)

    def add(self, holding: Holding, ttl: float) -> None:
        """It was granted; it ends after *ttl* unless it is renewed."""
        self._all[holding.token] = holding
        self.extend(holding, ttl)
        self.watch()
        if holding.ends_at < self._next_at and self._bell is not None:
            self._bell.set()

    def watch(self) -> None:
        """Look after what is held until nothing has been for a while. Begin before anything is asked for: where no
        thread can be started, nothing is granted."""
        if self._job is None:
            with self._mutex:
                if self._job is None and not self._closed:
                    self._bell = self._runtime.event()
                    self._job = self._runtime.spawn(self._run, "dibs leases")

    def extend(self, holding: Holding, ttl: float) -> None:
        """It was renewed."""
        holding.ends_at = max(holding.ends_at, self._runtime.now() + ttl)

    def drop(self, token: str) -> Holding | None:
        """It was given back, or went elsewhere."""
        return self._all.pop(token, None)

    def lose(self, holding: Holding, reason: LossReason) -> None:
        """It is over, and its owner did not end it."""
        if self._all.pop(holding.token, None) is None:
            return
        self._remember(holding.token, reason)
        if self.tell is not None:
            self.tell(holding.name, holding.token, reason)

    def reason(self, token: str) -> LossReason | None:
        """Why *token* lost what it held, if that was seen here."""
        return self._reasons.get(token)

    def lose_all_of(self, session: ConsulSession) -> None:
        """*session* has ended, and all that it carried."""
        for holding in list(self._all.values()):
            if holding.session is session:
                self.lose(holding, LossReason.SESSION_ENDED)

    async def close(self) -> None:
        """Stop watching."""
        self._closed, job = True, self._job
        if self._bell is not None:
            self._bell.set()
        if job is not None:
            await job.join(NAP)

    async def _run(self) -> None:
        idle = 0
        try:
            while not self._closed and idle < IDLE:
                await self._nap()
                idle = 0 if self._all else idle + 1
                for holding in list(self._all.values()):
                    if holding.ends_at <= self._runtime.now() and not self._closed:
                        await self._end(holding)
        finally:
            self._job = None

    async def _nap(self) -> None:
        assert self._bell is not None
        self._bell.clear()
        now = self._runtime.now()
        self._next_at = min([now + NAP, *(holding.ends_at for holding in list(self._all.values()))])
        await self._bell.wait(max(0.0, self._next_at - now))

    async def _end(self, holding: Holding) -> None:
        if await self._give_up(holding):
            self._all.pop(holding.token, None)
            self._remember(holding.token, LossReason.EXPIRED)
        else:
            holding.ends_at = self._runtime.now() + AGAIN

    def _remember(self, token: str, reason: LossReason) -> None:
        while len(self._reasons) >= REMEMBERED:
            self._reasons.pop(next(iter(self._reasons)))
        self._reasons[token] = reason
