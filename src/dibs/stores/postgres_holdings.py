"""What one client holds and waits for in its sessions.

Two asks of one client for one name exclude each other although a session would be given its own lock again: a key is
never tried in a session that has it, or may have it, but by those who share it; see `postgres_mode`. A request whose
answer did not come leaves its key with the session as a doubt; whoever asks again with its token, or gives it back,
unlocks first, which ends the doubt. Where it stays for the length of the ttl, the session is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable

from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder
from dibs.ports.postgres_session import Session
from dibs.ports.postgres_statement import Call, Rows, Transaction
from dibs.ports.postgres_values import number
from dibs.runtime import Runtime
from dibs.stores import postgres_lock as sql
from dibs.stores import postgres_mode as mode
from dibs.stores.postgres_cap import Cap
from dibs.stores.postgres_endings import Endings
from dibs.stores.postgres_facts import holder, parts
from dibs.stores.postgres_holding import Holding, Wait, Wanted
from dibs.stores.postgres_places import Places
from dibs.stores.postgres_sessions import Sessions
from dibs.stores.store import Busy, Grant

UNTIL_CALLED = 5.0
"""Seconds after which one who stands in line asks again: it need not, its place calls it."""

MOMENT = 0.01
"""Seconds that somebody who asks waits for the server to call, which it may be doing just now."""

LINE_TIMED_OUT = "55P03"


class Holdings:
    """The locks of one client, by token."""

    def __init__(self, sessions: Sessions, runtime: Runtime) -> None:
        self.sessions, self._runtime = sessions, runtime
        self.cap = Cap()
        self.begin()

    def begin(self) -> None:
        """Nothing is held."""
        self._mutex = self._runtime.mutex()
        self.all: dict[str, Holding] = {}
        self._joined = 0
        """How many of them have no lock of their own, but share one in their session."""
        self.places = Places(self.sessions, self._runtime, self.ask)
        self.endings = Endings(self, self._runtime)
        self.cap.count(0)

    def get(self, token: str) -> Holding | None:
        """What *token* certainly holds."""
        held = self.all.get(token)
        return held if held is not None and held.fence else None

    def may_have(self, token: str) -> bool:
        """Whether *token* may have a lock in a session that lives."""
        held = self.all.get(token)
        return held is not None and not held.session.ended

    async def ask(self, until: float, *transactions: Transaction) -> list[Rows]:
        """Ask something that any session can answer; again in another one, if that one has ended."""
        main = await self.sessions.main(until)
        try:
            return await main.run(until, *transactions)
        except OutcomeUnknown:
            if not main.ended:
                raise
        await self.endings.end(main)
        return await (await self.sessions.main(until)).run(until, *transactions)

    def drop(self, token: str) -> None:
        """*token* certainly has nothing any more."""
        with self._mutex:
            held = self.all.pop(token, None)
            if held is not None and token in (together := held.session.keys.get(held.key, set())):
                together.remove(token)
                if together:
                    self._joined -= 1
                else:
                    del held.session.keys[held.key]
            self.cap.count(len(self.all) - self._joined)

    # --- taking ------------------------------------------------------------------------------------------------

    async def grant(self, wanted: Wanted, until: float) -> Grant | Busy:
        """Try, and stand in line if that is wanted."""
        ask = wanted.ask
        if (held := self.get(ask.token)) is not None:
            held.ends_at = self._runtime.now() + ask.ttl
            return Grant(held.fence, ask.ttl)
        if (wait := self.places.all.get(ask.token)) is not None:
            return await self._called(wanted, wait, until)
        answer = await self._try(wanted, until)
        if isinstance(answer, Busy) and ask.queue:
            with contextlib.suppress(StoreUnavailable):  # no session for it now: it tries again instead
                await self._line_up(wanted, answer.holder, until)
        return answer

    async def _try(self, wanted: Wanted, until: float) -> Grant | Busy:
        main = await self.sessions.main(until)
        held, doubt = self._reserve(wanted, main)
        if held is None:
            return await self._busy(wanted, until)
        first = mode.giving_back(wanted.key, wanted.ask.token) if doubt else []
        answer = held.session.run(until, *first, mode.taking(wanted))
        tried, recorded = (await self._settled(held, answer, until, doubt=doubt))[-2:]
        if tried[0][0] != wanted.ask.token:
            self.drop(wanted.ask.token)
            return await self._busy(wanted, until)
        return await self._granted(wanted, held, recorded, until)

    def _reserve(self, wanted: Wanted, main: Session) -> tuple[Holding | None, bool]:
        """Where to try, and whether the lock may be ours there already; None if another ask of this client has it."""
        token = wanted.ask.token
        with self._mutex:
            if (held := self.all.get(token)) is not None:
                return held, True
            if self._another_has(wanted.key, token, main):
                return None, False
            together = main.keys.get(wanted.key)
            if together is None:
                self.cap.check(self.sessions.most_locks)
            held = self.all[token] = Holding(wanted, main, self._runtime.now() + wanted.ask.ttl)
            if together is None:
                main.keys[wanted.key] = {token}
            else:
                together.add(token)
                self._joined += 1
            self.cap.count(len(self.all) - self._joined)
            return held, False

    def _another_has(self, key: int, token: str, main: Session) -> bool:
        """Whether the server would give *main* what another ask of this client has, or is sure to refuse it."""
        if mode.shares(token):
            return not all(map(mode.shares, main.keys.get(key, ())))
        return self.sessions.have(key)

    async def _settled(
        self, held: Holding, answer: Awaitable[list[Rows]], until: float, *, doubt: bool = True
    ) -> list[Rows]:
        """The *answer* to a request for a lock; without one *held* stays as a doubt, unless that can be ended."""
        try:
            return await answer
        except OutcomeUnknown:
            if held.session.ended:
                await self.endings.end(held.session)
            raise
        except StoreUnavailable as error:
            if error.__cause__ is None and not doubt:  # nothing was sent
                self.drop(held.token)
            else:
                await self._undo(held, until)  # a lock is not undone with the statement that failed
            raise

    async def _undo(self, held: Holding, until: float) -> None:
        """Unlock what may be locked. An unlock of what is not locked does no harm; a doubt stays if it fails."""
        try:
            await held.session.run(until, *mode.giving_back(held.key, held.token))
        except StoreUnavailable as exc:
            raise OutcomeUnknown(exc.store, exc.problem) from exc
        self.drop(held.token)
        self.sessions.trim()

    async def _granted(self, wanted: Wanted, held: Holding, recorded: Rows, until: float) -> Grant:
        if not recorded:
            await self._undo(held, until)
            theirs = (await self._busy(wanted, until)).holder
            raise StoreUnavailable(
                self.sessions.source.shown,
                f"the name {wanted.ask.name!r} has the same key as {theirs.name if theirs else '?'!r}, or its fence "
                "has reached the last number: use another name",
            )
        held.ends_at = self._runtime.now() + wanted.ask.ttl
        held.fence = int(recorded[0][0] or 0)
        self.endings.watch()
        return Grant(held.fence, wanted.ask.ttl)

    async def _busy(self, wanted: Wanted, until: float) -> Busy:
        """Who has it: the last to whom it was granted, unless that was to share it, and the others are still there."""
        [last] = await self.ask(until, [Call(sql.LAST, wanted.facts[:1])])
        if not last or not mode.shares(last[0][8] or ""):
            return Busy(holder(last[0]) if last else None, UNTIL_CALLED)
        [sharing] = await self.ask(until, [Call(sql.SHARES, wanted.facts[:3])])
        return Busy(parts(sharing or last)[0], UNTIL_CALLED)

    # --- waiting -----------------------------------------------------------------------------------------------

    async def _line_up(self, wanted: Wanted, last: Holder | None, until: float) -> None:
        self.endings.watch()
        await self.places.take(wanted, last, until)

    async def _called(self, wanted: Wanted, wait: Wait, until: float) -> Grant | Busy:
        token = wanted.ask.token
        if not wait.session.answered() and not await self._called_just_now(wait, until):
            return Busy(wait.holder, UNTIL_CALLED)
        if self.places.all.pop(token, None) is None:  # too late: somebody else was let in
            return await self.grant(wanted, until)
        held = self.all[token] = Holding(wanted, wait.session, self._runtime.now() + wanted.ask.ttl)  # still a doubt
        try:
            *_, recorded = await self._settled(held, wait.session.answer(), until)
        except StoreUnavailable as error:
            if getattr(error.__cause__, "sqlstate", "") != LINE_TIMED_OUT:
                raise
            await self._line_up(wanted, wait.holder, until)
            return Busy(wait.holder, UNTIL_CALLED)
        return await self._granted(wanted, held, recorded, until)

    async def _called_just_now(self, wait: Wait, until: float) -> bool:
        """Wait for the call if it is on its way: the server has given the lock before it says so."""
        if await wait.session.called(min(until, self._runtime.now() + MOMENT)):
            return True
        with contextlib.suppress(StoreUnavailable):  # then it is told with the call, or when it asks again
            which = (number(wait.session.pid), wait.wanted.facts[0])
            [given] = await self.ask(until, [Call(sql.STILL_HELD, which)])
            return bool(given) and await wait.session.called(until)
        return False

    # --- giving back -------------------------------------------------------------------------------------------

    async def release(self, token: str, until: float) -> LossReason | None:
        """Unlock, or step out of the line."""
        if token in self.places.all and await self.places.step_out(token, until):
            return LossReason.TAKEN
        held = self.all.get(token)
        if held is None:
            return self.endings.reasons.pop(token, LossReason.TAKEN)
        again, held.given_back = held.given_back, True
        late = self._runtime.now() >= held.ends_at  # the watch gives it up too, perhaps just now
        try:
            rows, *_ = await held.session.run(until, *mode.giving_back(held.key, token))
        except StoreUnavailable:
            if not held.session.ended:
                raise
            await self.endings.end(held.session)
            return self.endings.reasons.pop(token, LossReason.SESSION_ENDED)
        self.drop(token)
        self.sessions.trim()
        if late:
            return LossReason.EXPIRED
        return None if held.fence and (again or rows[0][0] == "t") else LossReason.TAKEN
