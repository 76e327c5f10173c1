"""What one client holds, and the end of what it does not renew.

Many leases share a session, which lives as long as one of them is renewed. So a lease that is not renewed for its ttl,
because the program dropped it, is given back here: the server ends leases only when the whole client is gone.
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
"""Seconds after which it tries again to give back a lease."""

REMEMBERED = 10_000
"""The most tokens whose loss is remembered until their owner asks."""


class ConsulHolding:
    """One grant, as this client knows it."""

    __slots__ = ("ends_at", "fence", "index", "keys", "name", "session", "token")

    def __init__(self, name: str, token: str, keys: ConsulKeys, session: ConsulSession, fence: int, index: int) -> None:
        self.name, self.token, self.keys, self.session = name, token, keys, session
        self.fence = fence
        self.index = (
            index  # of the key as we know it: a process that takes the lease over writes the key, and its index changes
        )
        self.ends_at = 0.0


class ConsulHoldings:
    """The grants that one client holds, by token."""

    def __init__(self, runtime: Runtime, give_up: Callable[[ConsulHolding], Awaitable[bool]]) -> None:
        """*give_up* gives back a grant whose ttl is over, and tells whether it is gone."""
        self._runtime, self._give_up = runtime, give_up
        self.tell: Callable[[str, str, LossReason], None] | None = None
        """Called at each loss, at once, with name, token and reason."""
        self.begin()

    def begin(self) -> None:
        """Hold nothing: at the start, and in a forked child."""
        self._all: dict[str, ConsulHolding] = {}
        self._reasons: dict[str, LossReason] = {}
        self._loop = WatchLoop(self._runtime, "dibs leases", NAP)

    def get(self, token: str) -> ConsulHolding | None:
        """The grant of *token*; None if it holds nothing here."""
        return self._all.get(token)

    def add(self, holding: ConsulHolding, ttl: float) -> None:
        """Add a grant, which ends after *ttl* seconds unless it is renewed."""
        self._all[holding.token] = holding
        self.extend(holding, ttl)
        self.watch()
        self._loop.wake_by(holding.ends_at)

    def watch(self) -> None:
        """Look after the grants until there have been none for a while. Called before an ask: where no thread can be
        started, nothing is granted."""
        self._loop.start(self)

    def extend(self, holding: ConsulHolding, ttl: float) -> None:
        """Let a grant that was renewed end after *ttl* seconds from now."""
        holding.ends_at = max(holding.ends_at, self._runtime.now() + ttl)

    def drop(self, token: str) -> ConsulHolding | None:
        """Forget the grant of *token*, which was given back or handed over, and return it."""
        return self._all.pop(token, None)

    def lose(self, holding: ConsulHolding, reason: LossReason) -> None:
        """Forget a grant that was lost, remember why, and tell its holder."""
        if self._all.pop(holding.token, None) is None:
            return
        self._remember(holding.token, reason)
        if self.tell is not None:
            self.tell(holding.name, holding.token, reason)

    def reason(self, token: str) -> LossReason | None:
        """Why *token* lost its grant, if that was noticed here."""
        return self._reasons.get(token)

    def lose_all_of(self, session: ConsulSession) -> None:
        """Lose all grants of *session*, which has ended."""
        for holding in list(self._all.values()):
            if holding.session is session:
                self.lose(holding, LossReason.SESSION_ENDED)

    async def close(self) -> None:
        """Stop looking after the grants, and wait for that."""
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
