"""Renews leases of Consul: one request for each session, and one that checks the keys of up to 31 leases."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.consul.holdings import ConsulHoldings
from dibs.stores.consul.keys import ConsulNaming
from dibs.stores.consul.lease import ConsulLeases
from dibs.stores.consul.port.agent import Agent
from dibs.stores.consul.reading import ConsulReader
from dibs.stores.consul.sessions import ConsulSession, ConsulSessions
from dibs.stores.consul.txn import seconds, seen, unchanged, unpacked
from dibs.stores.consul.view import ConsulView
from dibs.stores.store import Claim, RenewAnswer, settled

TOGETHER = 31
"""Leases that one transaction checks, with two operations for each; it has at most 64 in Consul."""


class Moved(Enum):
    """The key of a claim has another index: the lease has moved to a session of its own."""

    MOVED = "moved"


MOVED = Moved.MOVED


class ConsulRenewals:
    """Renews leases of one client, and those of others that it is asked for."""

    def __init__(
        self,
        agent: Agent,
        naming: ConsulNaming,
        runtime: Runtime,
        sessions: ConsulSessions,
        holdings: ConsulHoldings,
        reader: ConsulReader,
        leases: ConsulLeases,
    ) -> None:
        self._agent, self._naming, self._runtime = agent, naming, runtime
        self._sessions, self._holdings, self._reader, self._leases = sessions, holdings, reader, leases

    async def renew(self, claims: Sequence[Claim], until: float) -> list[LossReason | None]:
        """One request for each session, and one for 31 leases: a session may outlive the key that it had locked."""
        answers: dict[int, RenewAnswer] = {}
        ours: dict[ConsulSession, list[int]] = {}
        for place, claim in enumerate(claims):
            holding = self._holdings.get(claim.token)
            known = holding is not None and (holding.name, holding.fence) == (claim.name, claim.fence)
            if holding is not None and known and claim.ttl <= holding.session.ttl:
                ours.setdefault(holding.session, []).append(place)
            else:
                answers[place] = await self._one(claim, until)
        for session, places in ours.items():
            found = await self._of_session(session, [claims[place] for place in places], until)
            answers.update(zip(places, found, strict=True))
        return settled([answers[place] for place in range(len(claims))])

    async def _of_session(self, session: ConsulSession, claims: Sequence[Claim], until: float) -> list[RenewAnswer]:
        try:
            if not await self._sessions.renew(session, until):
                return [self._holdings.reason(claim.token) or LossReason.SESSION_ENDED for claim in claims]
            parts = [claims[i : i + TOGETHER] for i in range(0, len(claims), TOGETHER)]
        except StoreUnavailable as error:
            return [error] * len(claims)
        answers: list[RenewAnswer] = []
        for part in parts:
            try:
                answers += await self._checked(session, part, until)
            except StoreUnavailable as error:
                answers += [error] * len(part)
        return answers

    async def _checked(self, session: ConsulSession, claims: Sequence[Claim], until: float) -> list[RenewAnswer]:
        """Read the keys and the evictions of all *claims* at once: a loss is told with its reason."""
        keys = [self._naming.keys(claim.name) for claim in claims]
        ops = [seen(key) for each in keys for key in (each.held, each.evicted)]
        answer = await self._agent.read([seen(session.key), *ops], until - self._runtime.now())
        found = {entry.key: entry for entry in answer} if isinstance(answer, list) else {}
        if session.key not in found:  # a key that we may not read looks as if it were not there
            await self._refuse_blindness(session, until)
        answers = [self._told(claim, ConsulView.of(each, found)) for claim, each in zip(claims, keys, strict=True)]
        await self._leases.clear(session, [found.get(each.held) for each in keys], until)
        return [await self._one(claims[i], until) if told is MOVED else told for i, told in enumerate(answers)]

    def _told(self, claim: Claim, found: ConsulView) -> RenewAnswer | Moved:
        """What the keys say of *claim*. If the lock is another client's, or free, that is a loss."""
        held, holding = found.held_by(claim.token), self._holdings.get(claim.token)
        if held is None:
            return self._leases.lost(claim.token, found)
        if holding is None or held.modified != holding.index:
            return MOVED
        self._holdings.extend(holding, claim.ttl)
        return None

    async def _refuse_blindness(self, session: ConsulSession, until: float) -> None:
        """Raise if we may not read the key of *session*: unlike a missing right to list, that is an error."""
        await self._agent.read([unchanged(session.key, session.stamp)], until - self._runtime.now())

    async def _one(self, claim: Claim, until: float) -> RenewAnswer:
        """Renew a claim that is in no session of ours, or in one that is too short for it."""
        try:
            return await self._moved(claim, until)
        except StoreUnavailable as error:
            return error

    async def _moved(self, claim: Claim, until: float) -> LossReason | None:
        found = await self._reader.look(self._naming.keys(claim.name), until)
        held = found.held_by(claim.token)
        if held is None or found.fence != claim.fence:
            return self._leases.lost(claim.token, found)
        if seconds(unpacked(held.value), "own") >= claim.ttl:
            self._holdings.drop(claim.token)  # what we knew of it is out of date
            alive = await self._agent.renew_session(held.session, until - self._runtime.now())
            return None if alive else LossReason.TAKEN
        return None if await self._leases.move(claim, held, until) else self._leases.lost(claim.token, found)
