"""What one client holds, and the end of what it does not renew.

Many leases share a session, which lives as long as one of them is renewed. So a lease that is not renewed for its ttl,
since the program dropped it, is given back here; the server ends only what the whole client left.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from dibs.errors import LossReason
from dibs.runtime import Runtime
from dibs.stores.consul.keys import ConsulKeys
from dibs.stores.consul.sessions import ConsulSession
from dibs.stores.watch import WatchLoop

NAP = 1.0
"""Seconds between two looks of the watch, at most."""

AGAIN = 0.1
"""Seconds after which it tries again to give back what could not be given back."""

REMEMBERED = 10_000
"""Tokens whose loss is remembered until somebody asks."""


class ConsulHolding:
    """One grant."""

    __slots__ = ("ends_at", "fence", "index", "keys", "name", "session", "token")

    def __init__(self, name: str, token: str, keys: ConsulKeys, session: ConsulSession, fence: int, index: int) -> None:
        self.name, self.token, self.keys, self.session = name, token, keys, session
        self.fence = fence
        self.index = index  # of the key as it is now: another process that attaches to the lease writes it anew
        self.ends_at = 0.0


class ConsulHoldings:
    """All of them, by token."""

    def __init__(self, runtime: Runtime, give_up: Callable[[ConsulHolding], Awaitable[bool]]) -> None:
        """*give_up* gives one back whose ttl is over, and tells whether that is done."""
        self._runtime, self._give_up = runtime, give_up
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Who wants to know at once of a loss."""
        self.begin()

    def begin(self) -> None:
        """Hold nothing: at the start, and in a forked child."""
        self._all: dict[str, ConsulHolding] = {}
        self._reasons: dict[str, LossReason] = {}
        self._loop = WatchLoop(self._runtime, "dibs leases", NAP)

    def get(self, token: str) -> ConsulHolding | None:
        """What *token* holds."""
        return self._all.get(token)

    def add(self, holding: ConsulHolding, ttl: float) -> None:
        """It was granted; it ends after *ttl* unless it is renewed."""
        self._all[holding.token] = holding
        self.extend(holding, ttl)
        self.watch()
        self._loop.wake_by(holding.ends_at)

    def watch(self) -> None:
        """Look after what is held until nothing has been for a while. Begin before anything is asked for: where no
        thread can be started, nothing is granted."""
        self._loop.start(self)

    def extend(self, holding: ConsulHolding, ttl: float) -> None:
        """It was renewed."""
        holding.ends_at = max(holding.ends_at, self._runtime.now() + ttl)

    def drop(self, token: str) -> ConsulHolding | None:
        """It was given back, or went elsewhere."""
        return self._all.pop(token, None)

    def lose(self, holding: ConsulHolding, reason: LossReason) -> None:
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
        self._loop.stop()
        await self._loop.join(NAP)

    # --- what the loop asks for ----------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self._all

    def next_end(self) -> float:
        """When the first grant ends unless it is renewed."""
        return min((holding.ends_at for holding in list(self._all.values())), default=math.inf)

    async def look(self) -> None:
        """Give back each grant whose ttl is over."""
        for holding in list(self._all.values()):
            if holding.ends_at <= self._runtime.now() and not self._loop.closed:
                await self._end(holding)

    async def _end(self, holding: ConsulHolding) -> None:
        if await self._give_up(holding):
            self._all.pop(holding.token, None)
            self._remember(holding.token, LossReason.EXPIRED)
        else:
            holding.ends_at = self._runtime.now() + AGAIN

    def _remember(self, token: str, reason: LossReason) -> None:
        while len(self._reasons) >= REMEMBERED:
            self._reasons.pop(next(iter(self._reasons)))
        self._reasons[token] = reason
