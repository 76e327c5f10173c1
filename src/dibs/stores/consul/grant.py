"""How a lock of Consul is taken: in one transaction, or after a wait in line.

The key ``.lock`` alone decides who holds: the transaction that takes the lock makes it, and is refused if it is there,
or if Consul's lock-delay for it runs. All else is order. Who has to wait leaves a ticket, and the key ``.waits``, which
turns away whoever has none. A waiter watches the ticket before its own; the first one watches ``.lock``. So a hand-over
wakes two waiters, however many there are. A first one that does not take what is free loses its ticket to the next who
asks.
"""

from __future__ import annotations

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.consul.attempt import STAMP, TURN, ConsulAttempt, opened
from dibs.stores.consul.holdings import ConsulHolding, ConsulHoldings
from dibs.stores.consul.keys import ConsulKeys, ConsulNaming
from dibs.stores.consul.port.agent import Agent, ConsulRefusal, Entry, Op
from dibs.stores.consul.sessions import ConsulSession, ConsulSessions
from dibs.stores.consul.txn import deleted, seconds, seen, unchanged, unpacked
from dibs.stores.consul.view import ENDLESS, ConsulView, view
from dibs.stores.store import Ask, Busy, Grant

PATIENCE = 0.5
"""Seconds for which a lock that is free is kept for the first in line: it may stand still, or be gone."""

SECOND_LOOK = 1.0
"""Seconds after which the second in line looks by itself: it is not told that the first does not take what is free."""

LONG = 60.0
"""Seconds: there is nothing to wait for but the hint."""

DELAY_LOOK = 0.5
"""Seconds between two tries while the lock-delay runs: Consul tells nobody when it ends."""

DELAYED = "the session of its last holder ended, and Consul keeps the lock closed for the lock-delay"

ROUNDS = 4
"""How often one ask tries when what it has seen is not so any more."""

REMEMBERED = 4096
"""Names of which something is remembered: it saves requests, and nothing depends on it."""


class ConsulGrants:
    """The asks of one client."""

    def __init__(
        self, agent: Agent, naming: ConsulNaming, runtime: Runtime, sessions: ConsulSessions, holdings: ConsulHoldings
    ) -> None:
        self._agent, self._naming, self._runtime = agent, naming, runtime
        self._sessions, self._holdings = sessions, holdings
        self.begin()

    def begin(self) -> None:
        """Ask for nothing: at the start, and in a forked child."""
        self._attempts: dict[str, ConsulAttempt] = {}
        self._contended: set[str] = set()
        self._free_since: dict[str, float] = {}
        self._delays: dict[str, float] = {}  # until when a lock-delay runs if its holder's session ends now

    def get(self, token: str) -> ConsulAttempt | None:
        """The ask of *token*, if there is something of it at the server, or may be."""
        return self._attempts.get(token)

    def queue_at_once(self, name: str) -> bool:
        """Whether the last that asked for *name* with a ticket had to wait."""
        return name in self._contended

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take the lock, or say why not."""
        self._holdings.watch()
        attempt = self._attempts.get(ask.token) or ConsulAttempt(ask, self._naming.keys(ask.name))
        self._attempts[ask.token] = attempt
        attempt.ask = ask
        try:
            return await self._rounds(attempt, until)
        except (StoreUnavailable, Misuse):
            if not attempt.ticket and not attempt.unsure:
                self._attempts.pop(ask.token, None)
            raise

    async def wait(self, ask: Ask, within: float) -> None:
        """Wait until the ticket before ours is gone, or the lock itself."""
        until, attempt = self._runtime.now() + within, self._attempts.get(ask.token)
        if attempt is None or attempt.watched is None or attempt.session is None:
            await self._runtime.sleep(within)
            return
        if await self._sessions.ready(ask.ttl, until) is attempt.session:
            left = min(until - self._runtime.now(), ask.ttl / 2)  # then the session is due
            watched = attempt.watched
            over = left > 0 and await self._agent.watch(watched.key, watched.modified, left)
            attempt.called = over and watched.key == attempt.keys.held

    async def give_up(self, attempt: ConsulAttempt, until: float) -> LossReason | None:
        """Leave the line, and give back what was taken without our knowing; None if that was the lock."""
        session, keys, token = attempt.session, attempt.keys, attempt.ask.token
        if session is None or session.ended:
            self._attempts.pop(token, None)
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
        self._attempts.pop(token, None)
        return reason

    async def close(self) -> None:
        """Leave every line: the tickets end with their session, but who is behind need not wait for that."""
        until = self._runtime.now() + PATIENCE
        for attempt in list(self._attempts.values()):
            try:
                await self.give_up(attempt, until)
            except StoreUnavailable:
                return

    async def stuck(self, found: ConsulView, until: float) -> str:
        """Why what another program holds does not end by itself, and how to remove it; mostly it is ours, and does."""
        session = found.foreign
        if session and await self._agent.never_ends(session, max(0.01, until - self._runtime.now())):
            return ENDLESS.format(session)
        return ""

    async def look(self, keys: ConsulKeys, until: float) -> ConsulView:
        """All that Consul knows of one name."""
        answer = await self._agent.read([seen(keys.all)], until - self._runtime.now())
        return view(keys, [] if isinstance(answer, ConsulRefusal) else answer)

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
        stuck = await self.stuck(found, until) if found is not None else ""
        return self._had(attempt, session, found) or self._busy(attempt, found, delayed, stuck)

    async def _first_look(self, attempt: ConsulAttempt, until: float) -> ConsulView | None:
        """Who asks for the first time, or was called, just tries."""
        called, attempt.called = attempt.called, False
        if attempt.unsure and attempt.session is not None:
            return await self._resolved(attempt, attempt.session, until)
        if attempt.ticket and not called:
            return await self.look(attempt.keys, until)
        return None

    async def _resolved(self, attempt: ConsulAttempt, session: ConsulSession, until: float) -> ConsulView | None:
        """What there is, once nothing that was sent before can be carried out any more; None if the session is gone.

        A later answer, also "busy", counts for all that was asked with the token: so it must not be overtaken.
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
        if attempt.session is not session:  # the first, or the last has ended, and our ticket with it
            attempt.session, attempt.ticket = session, 0
        return session

    def _may_take(self, attempt: ConsulAttempt, found: ConsulView) -> bool:
        """Whether it is free, and our turn."""
        name = attempt.ask.name
        if not found.is_free:
            self._free_since.pop(name, None)
            return False
        if not found.ahead_of(attempt.ask.token):
            return True
        return self._runtime.now() - self._free_since.setdefault(name, self._runtime.now()) >= PATIENCE

    async def _send(self, attempt: ConsulAttempt, ops: list[Op], until: float) -> list[Entry] | ConsulRefusal:
        attempt.unsure = True  # whoever is cancelled in it does not come to know
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
        """Why it was refused; False if it was for our own session, and another round tells more."""
        if STAMP in answer.said or answer.by_session:
            if stamp == session.stamp:  # else somebody else of this client wrote it meanwhile
                await self._sessions.restamp(session, until)
            return False
        if TURN in answer.said:
            attempt.ticket = 0
        attempt.alone = 0
        return True

    async def _found(self, attempt: ConsulAttempt, session: ConsulSession, until: float) -> ConsulView | None:
        """What there is, from our place in line if we are to have one; None if our session is not fit for that."""
        if not attempt.ask.queue or attempt.ticket:
            return await self.look(attempt.keys, until)
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
        self._attempts.pop(ask.token, None)
        if self._holdings.get(ask.token) is None:
            self._holdings.add(ConsulHolding(ask.name, ask.token, attempt.keys, session, fence, index), ask.ttl)
        return Grant(fence, ask.ttl)

    def _busy(self, attempt: ConsulAttempt, found: ConsulView | None, delayed: bool, stuck: str) -> Busy:
        ask, now = attempt.ask, self._runtime.now()
        if not attempt.ticket and not attempt.unsure:
            self._attempts.pop(ask.token, None)
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
