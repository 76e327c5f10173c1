"""What happens to a lease of Consul: it is handed over to another process, or given back.

A lease that leaves its client, because another process resumes or renews it, moves to a session of its own: that of
the client ends with the client. Moving is one transaction, so no other client can take the lock in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.consul.holdings import ConsulHolding, ConsulHoldings
from dibs.stores.consul.keys import ConsulNaming
from dibs.stores.consul.port.agent import Agent, ConsulRefusal, Entry
from dibs.stores.consul.reading import ConsulReader
from dibs.stores.consul.sessions import ConsulSession, ConsulSessions
from dibs.stores.consul.txn import deleted, locked, packed, unchanged, unlocked, unpacked
from dibs.stores.consul.view import ConsulView
from dibs.stores.consul.waiting import ConsulWaiters
from dibs.stores.store import Claim


class ConsulLeases:
    """Hands over and gives back leases of one client, and those of others that it is asked for."""

    def __init__(
        self,
        agent: Agent,
        naming: ConsulNaming,
        runtime: Runtime,
        sessions: ConsulSessions,
        holdings: ConsulHoldings,
        waiting: ConsulWaiters,
        reader: ConsulReader,
    ) -> None:
        self._agent, self._naming, self._runtime = agent, naming, runtime
        self._sessions, self._holdings, self._waiting, self._reader = sessions, holdings, waiting, reader

    # --- handing over --------------------------------------------------------------------------------------

    async def detach(self, claim: Claim, until: float) -> None:
        """Move the lease to a session of its own, so that it outlives this client."""
        found = await self._reader.look(self._naming.keys(claim.name), until)
        held = found.held_by(claim.token)
        if held is None or not (unpacked(held.value).get("own") or await self.move(claim, held, until)):
            self.lost(claim.token, found)

    async def attach(self, claim: Claim, who: dict[str, object], until: float) -> None:
        """Move the lease to a session of this client. *who* is shown as its holder."""
        keys = self._naming.keys(claim.name)
        session = await self._sessions.ready(claim.ttl, until)
        found = await self._reader.look(keys, until)
        held = found.held_by(claim.token)
        if held is None:
            return  # the next renewal says so
        facts = unpacked(held.value)
        value = packed(**{**facts, **who, "own": 0, "delay": session.delay})
        index = await self._relock(held, session.id, value, until)
        if index is None:
            return
        self._holdings.drop(claim.token)
        self._holdings.add(ConsulHolding(claim.name, claim.token, keys, session, claim.fence, index), claim.ttl)
        await self.end_own(held, until)

    async def move(self, claim: Claim, held: Entry, until: float) -> bool:
        """Move the lease on the key *held* to a session of its own; False if it has changed."""
        own = await self._sessions.own(claim.ttl, until)
        value = packed(**{**unpacked(held.value), "own": claim.ttl})
        try:
            moved = await self._relock(held, own, value, until) is not None
        except StoreUnavailable as error:
            if not isinstance(error, OutcomeUnknown):
                await self._agent.destroy_session(own, until - self._runtime.now())
            raise
        if moved:
            self._holdings.drop(claim.token)
        else:
            await self._agent.destroy_session(own, until - self._runtime.now())
        return moved

    async def _relock(self, held: Entry, session: str, value: bytes, until: float) -> int | None:
        """Move the lock on *held* from its session to *session*; returns the new index, None if it has changed."""
        ops = [unchanged(held.key, held.modified), unlocked(held.key, held.session), locked(held.key, session, value)]
        answer = await self._agent.txn(ops, until - self._runtime.now())
        return None if isinstance(answer, ConsulRefusal) else answer[-1].modified

    # --- giving back ---------------------------------------------------------------------------------------

    async def release(self, name: str, token: str, until: float) -> LossReason | None:
        """Give back what *token* has; None if that was the lock, or why it was not."""
        holding = self._holdings.get(token)
        refused = await self._give_back(holding, until) if holding is not None else None
        if holding is not None and refused is None:
            self._holdings.drop(token)
            return None
        attempt = self._waiting.get(token)
        if attempt is not None:
            return await self._waiting.give_up(attempt, until)
        try:
            return await self._release_other(name, token, until)
        except StoreUnavailable:
            if refused is None or not refused.says_absent(0):
                raise
            self._holdings.drop(token)
            return LossReason.TAKEN  # the first answer counts, even if we cannot find out why

    async def give_up(self, holding: ConsulHolding) -> bool:
        """Give back a grant whose ttl is over; tell whether it is gone."""
        try:
            await self._give_back(holding, self._runtime.now() + 1.0)
        except StoreUnavailable:
            return False
        return True  # or it was gone before, or has moved

    async def _give_back(self, holding: ConsulHolding, until: float) -> ConsulRefusal | None:
        ops = [unchanged(holding.keys.held, holding.index), deleted(holding.keys.held)]
        answer = await self._agent.txn(ops, until - self._runtime.now(), ordering_key=holding.token)
        return answer if isinstance(answer, ConsulRefusal) else None

    async def _release_other(self, name: str, token: str, until: float) -> LossReason | None:
        """Give back a grant that we do not know, or whose key has changed."""
        found = await self._reader.look(self._naming.keys(name), until)
        held, reason = found.held_by(token), LossReason.TAKEN
        if held is None:
            known = self._holdings.drop(token)
            reason = LossReason.EVICTED if found.was_evicted(token) else reason
            if known is not None:
                await self.clear(known.session, [found.held], until)
            if known is not None and known.session.ended:
                reason = LossReason.SESSION_ENDED
            return self._holdings.reason(token) or reason
        ops = [unchanged(held.key, held.modified), deleted(held.key)]
        if isinstance(await self._agent.txn(ops, until - self._runtime.now()), ConsulRefusal):
            raise StoreUnavailable(str(self._agent), f"the lock {name!r} changed while it was given back; try again")
        self._holdings.drop(token)
        await self.end_own(held, until)
        return None

    async def end_own(self, held: Entry, until: float) -> None:
        """End the session of its own that *held* had, if it had one; if that fails, it ends after its ttl."""
        if unpacked(held.value).get("own"):
            with contextlib.suppress(StoreUnavailable):
                await self._agent.destroy_session(held.session, until - self._runtime.now())

    # --- what has ended ------------------------------------------------------------------------------------

    def lost(self, token: str, found: ConsulView) -> LossReason:
        """Note that *token* does not hold its lock, as the keys *found* tell, and return why."""
        reason = self._holdings.reason(token)  # what was told once stays
        if reason is None:
            reason = LossReason.EVICTED if found.was_evicted(token) else LossReason.TAKEN
        holding = self._holdings.get(token)
        if holding is not None:
            self._holdings.lose(holding, reason)
        return reason

    async def clear(self, session: ConsulSession, found: Sequence[Entry | None], until: float) -> None:
        """Delete keys that our session has locked and another program has overwritten: they name no holder."""
        for held in found:
            if held is not None and held.session == session.id and not unpacked(held.value):
                with contextlib.suppress(StoreUnavailable):
                    ops = [unchanged(held.key, held.modified), deleted(held.key)]
                    await self._agent.txn(ops, until - self._runtime.now())
