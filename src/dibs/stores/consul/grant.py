"""How a lock of Consul is taken: in one transaction, or after a wait in the queue.

The key ``.lock`` alone decides who holds: the transaction that takes the lock makes it, and is refused if it is there,
or if Consul's lock-delay for it runs. All else is order. A waiter leaves a ticket, and the key ``.waits``, which turns
away every ask without a ticket. It watches the ticket before its own; the first one watches ``.lock``. So a hand-over
wakes two waiters, however many there are. If the first does not take a free lock, the next client that asks takes the
lock and deletes that ticket.
"""

from __future__ import annotations

from dibs.errors import Misuse, OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.consul.attempt import STAMP, TURN, ConsulAttempt
from dibs.stores.consul.holdings import ConsulHolding, ConsulHoldings
from dibs.stores.consul.keys import ConsulNaming
from dibs.stores.consul.port.agent import Agent, ConsulRefusal, Entry, Op
from dibs.stores.consul.reading import ConsulReader
from dibs.stores.consul.sessions import ConsulSession, ConsulSessions
from dibs.stores.consul.txn import seconds, seen, unpacked
from dibs.stores.consul.view import ConsulView, view
from dibs.stores.consul.waiting import ConsulWaiters
from dibs.stores.store import Ask, Busy, Grant

PATIENCE = 0.5
"""Seconds for which a free lock is kept for the first waiter, which may stand still or be gone."""

SECOND_LOOK = 1.0
"""Seconds after which the second waiter looks by itself: it is not told if the first does not take a free lock."""

LONG = 60.0
"""Seconds after which a waiter asks again where only the hint can change anything."""

DELAY_LOOK = 0.5
"""Seconds between two tries while the lock-delay runs: Consul does not tell when it ends."""

DELAYED = "the session of its last holder ended, and Consul keeps the lock closed for the lock-delay"

ROUNDS = 4
"""How often one ask tries again because what it has read has changed."""

REMEMBERED = 4096
"""The most names of which something is remembered. That only saves requests."""


class ConsulGrants:
    """Asks for locks on behalf of one client."""

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
        self.begin()

    def begin(self) -> None:
        """Remember nothing of any name: at the start, and in a forked child."""
        self._contended: set[str] = set()
        self._free_since: dict[str, float] = {}
        self._delays: dict[
            str, float
        ] = {}  # until when the lock-delay would run if the session of the holder ended now

    def queue_at_once(self, name: str) -> bool:
        """Whether the last ask for *name* with a ticket had to wait."""
        return name in self._contended

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take the lock, or a ticket, or learn who has it."""
        self._holdings.watch()
        attempt = self._waiting.attempts.get(ask.token) or ConsulAttempt(ask, self._naming.keys(ask.name))
        self._waiting.attempts[ask.token] = attempt
        attempt.ask = ask
        try:
            return await self._rounds(attempt, until)
        except (StoreUnavailable, Misuse):
            if not attempt.ticket and not attempt.unsure:
                self._waiting.attempts.pop(ask.token, None)
            raise

    # --- one round -----------------------------------------------------------------------------------------

    async def _rounds(self, attempt: ConsulAttempt, until: float) -> Grant | Busy:
        found, delayed = await self._first_look(attempt, until), False
        for _ in range(ROUNDS):
            session = await self._session(attempt, until)
            if (grant := self._had(attempt, session, found)) is not None:
                return grant
            if found is None or self._may_take(attempt, found):
                stamp = session.stamp
                answer = await self._send(attempt, attempt.taking(session, self._runtime.pid(), found), until)
                if not isinstance(answer, ConsulRefusal):
                    return self._taken(attempt, session, answer)
                delayed = answer.by_delay
                if not await self._learn(attempt, session, stamp, answer, until):
                    found = None
                    continue
            found = await self._found(attempt, session, until)
            if found is not None and (delayed or not self._may_take(attempt, found)):
                break
        stuck = await self._reader.stuck(found, until) if found is not None else ""
        return self._had(attempt, session, found) or self._busy(attempt, found, delayed, stuck)

    async def _first_look(self, attempt: ConsulAttempt, until: float) -> ConsulView | None:
        """Read the keys before the first try; None if it is a first ask or was called: then it just tries."""
        called, attempt.called = attempt.called, False
        if attempt.unsure and attempt.session is not None:
            return await self._resolved(attempt, attempt.session, until)
        if attempt.ticket and not called:
            return await self._reader.look(attempt.keys, until)
        return None

    async def _resolved(self, attempt: ConsulAttempt, session: ConsulSession, until: float) -> ConsulView | None:
        """Read the keys, once no earlier request can still be carried out; None if the session has ended.

        A later answer, also "busy", counts for all asks with the token, so none of them may be carried out after it.
        """
        answer = await self._sessions.restamp(session, until, seen(attempt.keys.all))
        attempt.unsure = False
        if not isinstance(answer, list):
            return None
        found = view(attempt.keys, answer)
        attempt.ticket = found.ticket_of(attempt.ask.token)
        return found

    async def _session(self, attempt: ConsulAttempt, until: float) -> ConsulSession:
        session = await self._sessions.ready(attempt.ask.ttl, until)
        if attempt.session is not session:  # our first session, or the last has ended, and our ticket with it
            attempt.session, attempt.ticket = session, 0
        return session

    def _may_take(self, attempt: ConsulAttempt, found: ConsulView) -> bool:
        """Whether the lock is free, and it is our turn."""
        name = attempt.ask.name
        if not found.is_free:
            self._free_since.pop(name, None)
            return False
        if not found.ahead_of(attempt.ask.token):
            return True
        return self._runtime.now() - self._free_since.setdefault(name, self._runtime.now()) >= PATIENCE

    async def _send(self, attempt: ConsulAttempt, ops: list[Op], until: float) -> list[Entry] | ConsulRefusal:
        attempt.unsure = True  # a caller that is cancelled here does not learn the outcome
        try:
            answer = await self._agent.txn(ops, until - self._runtime.now(), ordering_key=attempt.ask.token)
        except StoreUnavailable as error:
            attempt.unsure = isinstance(error, OutcomeUnknown)
            raise
        attempt.unsure = False
        return answer

    def _had(self, attempt: ConsulAttempt, session: ConsulSession, found: ConsulView | None) -> Grant | None:
        """The grant, if an earlier ask with the same token was carried out."""
        mine = found.held_by(attempt.ask.token) if found is not None else None
        return None if mine is None or found is None else self._granted(attempt, session, mine.modified, found.fence)

    def _taken(self, attempt: ConsulAttempt, session: ConsulSession, answer: list[Entry]) -> Grant:
        fence = next(entry.modified for entry in answer if entry.key == attempt.keys.held and entry.session)
        return self._granted(attempt, session, fence, fence)

    async def _learn(
        self, attempt: ConsulAttempt, session: ConsulSession, stamp: int, answer: ConsulRefusal, until: float
    ) -> bool:
        """Note what the refusal tells of the lock; False if it was about our session, and another round tells more."""
        if STAMP in answer.said or answer.by_session:
            if stamp == session.stamp:  # if not, another ask of this client has written it
                await self._sessions.restamp(session, until)
            return False
        if TURN in answer.said:
            attempt.ticket = 0
        attempt.alone = 0
        return True

    async def _found(self, attempt: ConsulAttempt, session: ConsulSession, until: float) -> ConsulView | None:
        """Read the keys, and take a ticket first if the ask queues; None if our session does not allow that."""
        if not attempt.ask.queue or attempt.ticket:
            return await self._reader.look(attempt.keys, until)
        stamp = session.stamp
        answer = await self._send(attempt, attempt.queueing(session, self._runtime.pid()), until)
        if isinstance(answer, ConsulRefusal):
            await self._learn(attempt, session, stamp, answer, until)
            return None
        found = view(attempt.keys, answer)
        attempt.ticket = found.ticket_of(attempt.ask.token)
        return found

    # --- how it ends ---------------------------------------------------------------------------------------

    def _granted(self, attempt: ConsulAttempt, session: ConsulSession, index: int, fence: int) -> Grant:
        ask = attempt.ask
        self._forget(ask.name)
        if attempt.ticket == 0:
            self._contended.discard(ask.name)
        self._waiting.attempts.pop(ask.token, None)
        if self._holdings.get(ask.token) is None:
            self._holdings.add(ConsulHolding(ask.name, ask.token, attempt.keys, session, fence, index), ask.ttl)
        return Grant(fence, ask.ttl)

    def _busy(self, attempt: ConsulAttempt, found: ConsulView | None, delayed: bool, stuck: str) -> Busy:
        ask, now = attempt.ask, self._runtime.now()
        if not attempt.ticket and not attempt.unsure:
            self._waiting.attempts.pop(ask.token, None)
        if found is None:
            return Busy(None, DELAY_LOOK)
        if ask.queue:
            self._note(ask.name)
        ahead = found.ahead_of(ask.token)
        attempt.watched = ahead[-1] if ahead else found.held
        attempt.alone = attempt.alone_in(found)
        holder = found.holder(ask.name, stuck)
        if holder is not None and found.held is not None:
            self._delays[ask.name] = now + seconds(unpacked(found.held.value), "delay")
        elif delayed:
            left = max(0.0, self._delays.get(ask.name, 0.0) - now)
            return Busy(None, max(left, DELAY_LOOK), DELAYED + (f" for about {left:.0f} s more" if left >= 1 else ""))
        return Busy(holder, PATIENCE if found.is_free else SECOND_LOOK if len(ahead) == 1 else LONG, stuck=stuck)

    def _note(self, name: str) -> None:
        for noted in (self._contended, self._delays, self._free_since):
            if len(noted) >= REMEMBERED:
                noted.clear()
        self._contended.add(name)

    def _forget(self, name: str) -> None:
        self._free_since.pop(name, None)
        self._delays.pop(name, None)
