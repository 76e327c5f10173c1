"""Renews session locks: asks each session who it is and what it has locked."""

from __future__ import annotations

from collections.abc import Sequence

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.advisory import mode, sql
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.port.session import Session
from dibs.stores.postgres.port.statement import Call, Transaction
from dibs.stores.postgres.port.values import numbers, texts
from dibs.stores.store import Claim, RenewAnswer, settled


class AdvisoryHeartbeats:
    """Asks the sessions of one client whether they still have their locks."""

    def __init__(self, held: AdvisoryLocks, sessions: Sessions, losses: AdvisoryLosses, runtime: Runtime) -> None:
        self._held, self._sessions, self._losses, self._runtime = held, sessions, losses, runtime

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """Ask each session who it is and what it has locked."""
        answers: list[RenewAnswer] = [None] * len(claims)
        by_session: dict[Session, list[int]] = {}
        for index, claim in enumerate(claims):
            held = self._held.get(claim.token)
            if held is not None and held.fence == claim.fence and held.name == claim.name:
                by_session.setdefault(held.session, []).append(index)
            else:
                answers[index] = reason = self._losses.reasons.get(claim.token, LossReason.TAKEN)
                self._losses.say(claim.name, claim.token, reason)  # before another session is asked, which may hang
        for session, indexes in by_session.items():
            for index, answer in zip(
                indexes, await self._heartbeat(session, [claims[i] for i in indexes], until), strict=True
            ):
                answers[index] = answer
        return settled(answers)

    async def _heartbeat(self, session: Session, claims: Sequence[Claim], until: float) -> list[RenewAnswer]:
        try:
            rows, *still_in = await self._sessions.run(session, until, [Call(sql.HEARTBEAT)], *self._sharing(claims))
        except StoreUnavailable as error:
            if not session.ended:
                return [error] * len(claims)
            await self._losses.end(session)
            return [self._losses.reasons.get(claim.token, LossReason.SESSION_ENDED) for claim in claims]
        if rows[0][0] != str(session.pid):  # another session answers instead: a pooler, or a driver that reconnects
            await self._losses.end(session)
            return [LossReason.SESSION_ENDED] * len(claims)
        locked = {(int(key), lock) for _, key, lock in rows if key is not None}
        inside = {row[0] for row in still_in[0]} if still_in else set()
        return [self._beat(claim, locked, inside) for claim in claims]

    def _sharing(self, claims: Sequence[Claim]) -> list[Transaction]:
        """Where several have one lock together, it does not tell whose it is still."""
        held = [held for claim in claims if mode.shares(claim.token) and (held := self._held.get(claim.token))]
        if not held:
            return []
        return [[Call(mode.STILL_IN, (numbers([each.key for each in held]), texts([each.token for each in held])))]]

    def _beat(self, claim: Claim, locked: set[tuple[int, str | None]], inside: set[str | None]) -> RenewAnswer:
        held = self._held.get(claim.token)
        if held is None or held.given_back:
            return self._losses.reasons.get(claim.token, LossReason.TAKEN)
        token, lock = claim.token, (held.key, mode.mode(claim.token))
        if lock not in locked or (mode.shares(token) and token not in inside):  # our session was unlocked by somebody
            self._losses.lose(held, LossReason.TAKEN)
            return LossReason.TAKEN
        held.ends_at = max(held.ends_at, self._runtime.now() + claim.ttl)
        return None
