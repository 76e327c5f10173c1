"""How a waiter of Consul waits for its turn, and how it leaves the queue."""

from __future__ import annotations

from dibs.errors import LossReason, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.consul.attempt import ConsulAttempt, opened
from dibs.stores.consul.port.agent import Agent, ConsulRefusal
from dibs.stores.consul.sessions import ConsulSessions
from dibs.stores.consul.txn import deleted, seen, unchanged
from dibs.stores.consul.view import view
from dibs.stores.store import Ask

CLOSING = 0.5
"""Seconds that closing may take to delete the tickets."""


class ConsulWaiters:
    """The asks of one client that have, or may have, a ticket or a lock at the server that it does not know of."""

    def __init__(self, agent: Agent, runtime: Runtime, sessions: ConsulSessions) -> None:
        self._agent, self._runtime, self._sessions = agent, runtime, sessions
        self.begin()

    def begin(self) -> None:
        """Forget all asks: at the start, and in a forked child."""
        self.attempts: dict[str, ConsulAttempt] = {}

    def get(self, token: str) -> ConsulAttempt | None:
        """The ask of *token*, if it has, or may have, anything at the server."""
        return self.attempts.get(token)

    async def wait(self, ask: Ask, within: float) -> None:
        """Wait until the ticket before ours is gone, or the lock is free if we are the first."""
        until, attempt = self._runtime.now() + within, self.attempts.get(ask.token)
        if attempt is None or attempt.watched is None or attempt.session is None:
            await self._runtime.sleep(within)
            return
        if await self._sessions.ready(ask.ttl, until) is attempt.session:
            left = min(until - self._runtime.now(), ask.ttl / 2)  # then the session has to be renewed
            watched = attempt.watched
            over = left > 0 and await self._agent.watch(watched.key, watched.modified, left)
            attempt.called = over and watched.key == attempt.keys.held

    async def give_up(self, attempt: ConsulAttempt, until: float) -> LossReason | None:
        """Delete our ticket, and give back a lock that was taken without our knowing; None if there was one."""
        session, keys, token = attempt.session, attempt.keys, attempt.ask.token
        if session is None or session.ended:
            self.attempts.pop(token, None)
            return LossReason.TAKEN
        ops = [deleted(attempt.key), seen(keys.all)]
        answer = await (
            self._sessions.restamp(session, until, *ops)
            if attempt.unsure
            else self._agent.txn(ops, until - self._runtime.now(), ordering_key=token, again=True)
        )
        found = view(keys, answer) if isinstance(answer, list) else None
        reason: LossReason | None = LossReason.TAKEN
        if found is not None and (mine := found.held_by(token)) is not None:
            ops = [unchanged(keys.held, mine.modified), deleted(keys.held)]
            if not isinstance(await self._agent.txn(ops, until - self._runtime.now()), ConsulRefusal):
                reason = None
        elif found is not None and not found.tickets and found.waits is not None:
            await self._agent.txn(opened(keys, found.waits.modified), until - self._runtime.now())
        self.attempts.pop(token, None)
        return reason

    async def close(self) -> None:
        """Delete all tickets: they end with their session, but the waiters behind need not wait for that."""
        until = self._runtime.now() + CLOSING
        for attempt in list(self.attempts.values()):
            try:
                await self.give_up(attempt, until)
            except StoreUnavailable:
                return
