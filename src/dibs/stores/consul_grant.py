"""How a lock of Consul is taken: in one transaction, or after a wait in line.

The key ``.lock`` alone decides who holds: the transaction that takes the lock makes it, and is refused if it is there,
or if Consul's lock-delay for it runs. All else is order. Who has to wait leaves a ticket, and the key ``.waits``, which
turns away whoever has none. A waiter watches the ticket before its own; the first one watches ``.lock``. So a hand-over
wakes two waiters, however many there are. A first one that does not take what is free loses its ticket to the next who
asks.
"""

from __future__ import annotations

from urllib.parse import quote

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.holder import here
from dibs.ports.consul import Agent, Entry, Op, Refused, wall_clock
from dibs.runtime import Runtime
from dibs.stores.consul_holdings import Holding, Holdings
from dibs.stores.consul_keys import Keys, Naming
from dibs.stores.consul_sessions import Session, Sessions
from dibs.stores.consul_txn import absent, deleted, locked, packed, seen, unchanged, unpacked, written
from dibs.stores.consul_view import View, view
from dibs.stores.store import Ask, Busy, Grant

PATIENCE = 0.5
"""Seconds for which a lock that is free is kept for the first in line: it may stand still, or be gone."""

SECOND_LOOK = 1.0
"""Seconds after which the second in line looks by itself: it is not told that the first does not take what is free."""

LONG = 60.0
"""Seconds: there is nothing to wait for but the hint."""

DELAY_LOOK = 0.5
"""Seconds between two tries while the lock-delay runs: Consul tells nobody when it ends."""

ROUNDS = 4
"""How often one ask tries when what it has seen is not so any more."""

MOST_SKIPPED = 40
"""Tickets that one grant takes away: a transaction of Consul has at most 64 operations."""

REMEMBERED = 4096
"""Names of which something is remembered: it saves requests, and nothing depends on it."""

STAMP, TURN = 0, 2
"""Places of operations in the transaction that takes."""


class Attempt:
    """One ask on its way to a grant."""

    __slots__ = ("alone", "ask", "called", "keys", "session", "ticket", "unsure", "watched")

    def __init__(self, ask: Ask, keys: Keys) -> None:
        self.ask, self.keys = ask, keys
        self.session: Session | None = None
        self.unsure = False  # whether something was sent of which nobody knows whether it was carried out
        self.ticket = 0  # its index; 0 if there is none
        self.watched: Entry | None = None  # what it waits for
        self.called = False  # whether that is over, and it is our turn
        self.alone = 0  # the index of `.waits` when nobody else was in line

    @property
    def key(self) -> str:
        """Of its ticket."""
        return self.keys.line + quote(self.ask.token, safe="")


class Taking:
    """The asks of one client."""

    def __init__(self, agent: Agent, naming: Naming, runtime: Runtime, sessions: Sessions, holdings: Holdings) -> None:
        self._agent, self._naming, self._runtime = agent, naming, runtime
        self._sessions, self._holdings = sessions, holdings
        self.begin()

    def begin(self) -> None:
        """Ask for nothing: at the start, and in a forked child."""
        self._attempts: dict[str, Attempt] = {}
        self._crowds: set[str] = set()
        self._free_since: dict[str, float] = {}
        self._delays: dict[str, float] = {}  # until when a lock-delay runs if its holder's session ends now

    def get(self, token: str) -> Attempt | None:
        """The ask of *token*, if there is something of it at the server, or may be."""
        return self._attempts.get(token)

    def crowded(self, name: str) -> bool:
        """Whether the last that asked for *name* with a ticket had to wait."""
        return name in self._crowds

    async def grant(self, ask: Ask, until: float) -> Grant | Busy:
        """Take the lock, or say why not."""
        attempt = self._attempts.get(ask.token) or Attempt(ask, self._naming.keys(ask.name))
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

    async def give_up(self, attempt: Attempt, until: float) -> LossReason | None:
        """Leave the line, and give back what was taken without our knowing; None if that was the lock."""
        session, keys, token = attempt.session, attempt.keys, attempt.ask.token
        if session is None or session.ended:
            self._attempts.pop(token, None)
            return LossReason.TAKEN
        ops = [deleted(attempt.key), seen(keys.all)]
        answer = await (
            self._sessions.restamp(session, until, *ops)
            if attempt.unsure
            else self._agent.txn(ops, until - self._runtime.now(), strand=token)
        )
        found = view(keys, answer) if isinstance(answer, list) else None
        reason: LossReason | None = LossReason.TAKEN
        if found is not None and (mine := found.held_by(token)) is not None:
            ops = [unchanged(keys.held, mine.modified), deleted(keys.held)]
            if not isinstance(await self._agent.txn(ops, until - self._runtime.now()), Refused):
                reason = None
        elif found is not None and not found.line and found.waits is not None:
            await self._agent.txn(_opened(keys, found.waits.modified), until - self._runtime.now())
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

    async def look(self, keys: Keys, until: float) -> View:
        """All that Consul knows of one name."""
        answer = await self._agent.read([seen(keys.all)], until - self._runtime.now())
        return view(keys, [] if isinstance(answer, Refused) else answer)

    # --- one round -----------------------------------------------------------------------------------------

    async def _rounds(self, attempt: Attempt, until: float) -> Grant | Busy:
        token, found, delayed = attempt.ask.token, await self._first_look(attempt, until), False
        for _ in range(ROUNDS):
            session = await self._session(attempt, until)
            if found is not None and (mine := found.held_by(token)) is not None:
                return self._granted(attempt, session, mine.modified, found.fence)
            if found is None or self._may_take(attempt, found):
                stamp = session.stamp
                answer = await self._send(attempt, self._taking(attempt, session, found), until)
                if not isinstance(answer, Refused):
                    return self._taken(attempt, session, answer)
                delayed = answer.by_delay
                if not await self._learn(attempt, session, stamp, answer, until):
                    found = None
                    continue
            found = await self._found(attempt, session, until)
            if found is not None and (delayed or not self._may_take(attempt, found)) and not found.held_by(token):
                break
        return self._busy(attempt, found, delayed)

    async def _first_look(self, attempt: Attempt, until: float) -> View | None:
        """Who asks for the first time, or was called, just tries."""
        called, attempt.called = attempt.called, False
        if attempt.unsure and attempt.session is not None:
            return await self._resolved(attempt, attempt.session, until)
        if attempt.ticket and not called:
            return await self.look(attempt.keys, until)
        return None

    async def _resolved(self, attempt: Attempt, session: Session, until: float) -> View | None:
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

    async def _session(self, attempt: Attempt, until: float) -> Session:
        session = await self._sessions.ready(attempt.ask.ttl, until)
        if attempt.session is not session:  # the first, or the last has ended, and our ticket with it
            attempt.session, attempt.ticket = session, 0
        return session

    def _may_take(self, attempt: Attempt, found: View) -> bool:
        """Whether it is free, and our turn."""
        name = attempt.ask.name
        if not found.is_free:
            self._free_since.pop(name, None)
            return False
        if not found.ahead_of(attempt.ask.token):
            return True
        return self._runtime.now() - self._free_since.setdefault(name, self._runtime.now()) >= PATIENCE

    def _taking(self, attempt: Attempt, session: Session, found: View | None) -> list[Op]:
        """The transaction; nobody is wronged if what was *found* is not so any more: then it is refused."""
        keys, waits = attempt.keys, found.waits if found is not None else None
        ahead = found.ahead_of(attempt.ask.token) if found is not None else ()
        held = found.held if found is not None else None
        free = absent(keys.held) if held is None else unchanged(keys.held, held.modified)
        if attempt.ticket:
            turn = unchanged(attempt.key, attempt.ticket)
        else:
            turn = absent(keys.waits) if waits is None else unchanged(keys.waits, waits.modified)
        take = [
            locked(keys.held, session.id, self._facts(attempt, session)),
            written(keys.last, packed(token=attempt.ask.token)),
        ]
        ops = [unchanged(session.key, session.stamp), free, turn, *take]
        ops += [deleted(ticket.key) for ticket in ahead[:MOST_SKIPPED]]
        if attempt.ticket:
            ops.append(deleted(attempt.key))
        alone = attempt.alone if found is None else _alone(attempt, found)
        return ops + (_opened(keys, alone) if alone else [])

    def _facts(self, attempt: Attempt, session: Session) -> bytes:
        """Who we are, as others see it in the value of what we lock."""
        who = here(self._runtime.pid(), attempt.ask.name, attempt.ask.note)
        me = {"host": who.host, "pid": who.pid, "user": who.user, "note": who.note, "since": wall_clock()}
        return packed(token=attempt.ask.token, delay=session.delay, **me)

    async def _send(self, attempt: Attempt, ops: list[Op], until: float) -> list[Entry] | Refused:
        attempt.unsure = True  # whoever is cancelled in it does not come to know
        try:
            answer = await self._agent.txn(ops, until - self._runtime.now(), strand=attempt.ask.token)
        except StoreUnavailable as error:
            attempt.unsure = isinstance(error, OutcomeUnknown)
            raise
        attempt.unsure = False
        return answer

    def _taken(self, attempt: Attempt, session: Session, answer: list[Entry]) -> Grant:
        fence = next(entry.modified for entry in answer if entry.key == attempt.keys.held and entry.session)
        return self._granted(attempt, session, fence, fence)

    async def _learn(self, attempt: Attempt, session: Session, stamp: int, answer: Refused, until: float) -> bool:
        """Why it was refused; False if it was for our own session, and another round tells more."""
        if STAMP in answer.said or answer.by_session:
            if stamp == session.stamp:  # else somebody else of this client wrote it meanwhile
                await self._sessions.restamp(session, until)
            return False
        if TURN in answer.said:
            attempt.ticket = 0
        attempt.alone = 0
        return True

    async def _found(self, attempt: Attempt, session: Session, until: float) -> View | None:
        """What there is, from our place in line if we are to have one; None if our session is not fit for that."""
        if not attempt.ask.queue or attempt.ticket:
            return await self.look(attempt.keys, until)
        keys, ask = attempt.keys, attempt.ask
        ticket = [
            locked(attempt.key, session.id, self._facts(attempt, session)),
            written(keys.waits, packed(token=ask.token)),
        ]
        stamp = session.stamp
        answer = await self._send(attempt, [unchanged(session.key, stamp), *ticket, seen(keys.all)], until)
        if isinstance(answer, Refused):
            await self._learn(attempt, session, stamp, answer, until)
            return None
        found = view(keys, answer)
        attempt.ticket = found.ticket_of(ask.token)
        return found

    # --- how it ends ---------------------------------------------------------------------------------------

    def _granted(self, attempt: Attempt, session: Session, index: int, fence: int) -> Grant:
        ask = attempt.ask
        self._forget(ask.name)
        if attempt.ticket == 0:
            self._crowds.discard(ask.name)
        self._attempts.pop(ask.token, None)
        if self._holdings.get(ask.token) is None:
            self._holdings.add(Holding(ask.name, ask.token, attempt.keys, session, fence, index), ask.ttl)
        return Grant(fence, ask.ttl)

    def _busy(self, attempt: Attempt, found: View | None, delayed: bool) -> Busy:
        ask, now = attempt.ask, self._runtime.now()
        if not attempt.ticket and not attempt.unsure:
            self._attempts.pop(ask.token, None)
        if found is None:
            return Busy(None, DELAY_LOOK)
        if ask.queue:
            self._note(ask.name)
        ahead = found.ahead_of(ask.token)
        attempt.watched = ahead[-1] if ahead else found.held
        attempt.alone = _alone(attempt, found)
        holder = found.holder(ask.name)
        if holder is not None and found.held is not None:
            self._delays[ask.name] = now + float(unpacked(found.held.value).get("delay", 0.0))
        elif delayed:
            left = max(0.0, self._delays.get(ask.name, 0.0) - now)
            return Busy(None, max(left, DELAY_LOOK), _DELAYED + (f" for about {left:.0f} s more" if left >= 1 else ""))
        return Busy(holder, PATIENCE if found.is_free else SECOND_LOOK if len(ahead) == 1 else LONG)

    def _note(self, name: str) -> None:
        for noted in (self._crowds, self._delays, self._free_since):
            if len(noted) >= REMEMBERED:
                noted.clear()
        self._crowds.add(name)

    def _forget(self, name: str) -> None:
        self._free_since.pop(name, None)
        self._delays.pop(name, None)


_DELAYED = "the session of its last holder ended, and Consul keeps the lock closed for the lock-delay"


def _opened(keys: Keys, index: int) -> list[Op]:
    """Let in who has no ticket: nobody else waits, if nobody has come since `.waits` had that *index*."""
    return [unchanged(keys.waits, index), deleted(keys.waits)]


def _alone(attempt: Attempt, found: View) -> int:
    """The index of `.waits` if nobody waits but us, or whoever stood before us; else 0."""
    if found.waits is None:
        return 0
    place = len(found.ahead_of(attempt.ask.token)) + (1 if attempt.ticket else 0)
    return found.waits.modified if place >= len(found.line) else 0
