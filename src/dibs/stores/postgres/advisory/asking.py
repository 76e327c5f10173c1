"""Asks what any session of a client can answer: who has a lock, who waits, what to evict."""

from __future__ import annotations

from dibs.errors import OutcomeUnknown
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.port.statement import Rows, Transaction


class AnySession:
    """Whichever session of one client answers."""

    def __init__(self, sessions: Sessions, losses: AdvisoryLosses) -> None:
        self._sessions, self._losses = sessions, losses

    async def ask(self, until: float, *transactions: Transaction) -> list[Rows]:
        """Ask something that any session can answer; again in another one, if that one has ended."""
        main = await self._sessions.main(until)
        try:
            return await self._sessions.run(main, until, *transactions)
        except OutcomeUnknown:
            if not main.ended:
                raise
        await self._losses.end(main)
        return await self._sessions.run(await self._sessions.main(until), until, *transactions)
