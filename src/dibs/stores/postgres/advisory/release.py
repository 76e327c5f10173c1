"""Gives session locks back: unlocks what is held, and leaves the server's queue."""

from __future__ import annotations

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.advisory import mode
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.advisory.waiting import WaitingSessions


class AdvisoryReleases:
    """Gives back what the tokens of one client hold or wait for."""

    def __init__(
        self,
        held: AdvisoryLocks,
        sessions: Sessions,
        losses: AdvisoryLosses,
        waiting: WaitingSessions,
        runtime: Runtime,
    ) -> None:
        self._held, self._sessions, self._losses, self._waiting = held, sessions, losses, waiting
        self._runtime = runtime

    async def release(self, token: str, until: float) -> LossReason | None:
        """Unlock, or leave the server's queue."""
        if token in self._waiting.all and await self._waiting.step_out(token, until):
            return LossReason.TAKEN
        held = self._held.all.get(token)
        if held is None:
            return self._losses.reasons.pop(token, LossReason.TAKEN)
        again, held.given_back = held.given_back, True
        late = self._runtime.now() >= held.ends_at  # the watch gives it up too, perhaps just now
        try:
            rows, *_ = await self._sessions.run(held.session, until, *mode.giving_back(held.key, token))
        except StoreUnavailable:
            if not held.session.ended:
                raise
            await self._losses.end(held.session)
            return self._losses.reasons.pop(token, LossReason.SESSION_ENDED)
        self._held.drop(token)
        self._sessions.trim()
        if late:
            return LossReason.EXPIRED
        return None if held.fence and (again or rows[0][0] == "t") else LossReason.TAKEN
