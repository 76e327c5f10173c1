"""Takes session locks: tries them, waits for them in the server's queue, and ends every doubt about them."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.advisory import mode, sql
from dibs.stores.postgres.advisory.asking import AnySession
from dibs.stores.postgres.advisory.holding import AdvisoryLock, Wait, Wanted
from dibs.stores.postgres.advisory.holdings import AdvisoryLocks
from dibs.stores.postgres.advisory.losses import AdvisoryLosses
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.advisory.waiting import WaitingSessions
from dibs.stores.postgres.advisory.watch import AdvisoryWatch
from dibs.stores.postgres.facts import session_holders, shares
from dibs.stores.postgres.port.errors import tables_are_gone
from dibs.stores.postgres.port.statement import Call, Rows
from dibs.stores.postgres.port.values import number
from dibs.stores.store import Busy, Grant

UNTIL_CALLED = 5.0
"""Seconds after which one who stands in line asks again: it need not, its place calls it."""

MOMENT = 0.01
"""Seconds that somebody who asks waits for the server to call, which it may be doing just now."""

LINE_TIMED_OUT = "55P03"


class AdvisoryGrants:
    """Takes locks for the asks of one client."""

    def __init__(
        self,
        held: AdvisoryLocks,
        sessions: Sessions,
        losses: AdvisoryLosses,
        any_session: AnySession,
        waiting: WaitingSessions,
        watch: AdvisoryWatch,
        runtime: Runtime,
    ) -> None:
        self._held, self._sessions, self._losses, self._any_session = held, sessions, losses, any_session
        self._waiting, self._watch, self._runtime = waiting, watch, runtime

    async def grant(self, wanted: Wanted, until: float) -> Grant | Busy:
        """Try, and stand in line if that is wanted; once more if somebody has dropped the tables."""
        try:
            return await self._grant(wanted, until)
        except StoreUnavailable as error:  # what was locked is unlocked
            if not tables_are_gone(error):
                raise
        await self._sessions.make_tables(await self._sessions.main(until), until)
        return await self._grant(wanted, until)

    async def _grant(self, wanted: Wanted, until: float) -> Grant | Busy:
        ask = wanted.ask
        if (held := self._held.get(ask.token)) is not None:
            held.ends_at = self._runtime.now() + ask.ttl
            return Grant(held.fence, ask.ttl)
        if (wait := self._waiting.all.get(ask.token)) is not None:
            return await self._called(wanted, wait, until)
        answer = await self._try(wanted, until)
        if isinstance(answer, Busy) and ask.queue:
            with contextlib.suppress(StoreUnavailable):  # no session for it now: it tries again instead
                await self._line_up(wanted, until)
        return answer

    async def _try(self, wanted: Wanted, until: float) -> Grant | Busy:
        main = await self._sessions.main(until)
        held, doubt = self._held.reserve(wanted, main)
        if held is None:
            return await self._busy(wanted, until)
        try:
            self._watch.start()  # before anything is granted: there may be no thread left for it
        except StoreUnavailable:
            if not doubt:
                self._held.drop(wanted.ask.token)
            raise
        first = mode.giving_back(wanted.key, wanted.ask.token) if doubt else []
        answer = held.session.run(until, *first, mode.taking(wanted))
        tried, recorded = (await self._settled(held, answer, until, doubt=doubt))[-2:]
        if tried[0][0] != wanted.ask.token:
            self._held.drop(wanted.ask.token)
            with contextlib.suppress(StoreUnavailable):
                return await self._busy(wanted, until)
            return Busy(None, UNTIL_CALLED)  # that it is taken is known, also if nobody can say by whom
        return await self._granted(wanted, held, recorded, until)

    async def _settled(
        self, held: AdvisoryLock, answer: Awaitable[list[Rows]], until: float, *, doubt: bool = True
    ) -> list[Rows]:
        """The *answer* to a request for a lock; without one *held* stays as a doubt, unless that can be ended."""
        try:
            return await answer
        except OutcomeUnknown:
            if held.session.ended:
                await self._losses.end(held.session)
            raise
        except StoreUnavailable as error:
            if error.__cause__ is None and not doubt:  # nothing was sent
                self._held.drop(held.token)
            else:
                await self._undo(held, until)  # a lock is not undone with the statement that failed
            raise

    async def _undo(self, held: AdvisoryLock, until: float) -> None:
        """Unlock what may be locked. An unlock of what is not locked does no harm; a doubt stays if it fails."""
        try:
            await self._sessions.run(held.session, until, *mode.giving_back(held.key, held.token))
        except StoreUnavailable as exc:
            raise OutcomeUnknown(exc.store, exc.problem) from exc
        self._held.drop(held.token)
        self._sessions.trim()

    async def _granted(self, wanted: Wanted, held: AdvisoryLock, recorded: Rows, until: float) -> Grant:
        if not recorded:
            await self._undo(held, until)
            theirs = (await self._busy(wanted, until)).holder
            raise StoreUnavailable(
                self._sessions.source.shown,
                f"the name {wanted.ask.name!r} has the same key as {theirs.name if theirs else '?'!r}, or its fence "
                "has reached the last number: use another name",
            )
        held.ends_at = self._runtime.now() + wanted.ask.ttl
        held.fence = int(recorded[0][0] or 0)
        return Grant(held.fence, wanted.ask.ttl)

    async def _busy(self, wanted: Wanted, until: float) -> Busy:
        """Who has it; or had it last, if nobody has it just now."""
        key = wanted.facts[:1]
        who, last = await self._any_session.ask(until, [Call(sql.WHO_HAS, key), Call(sql.LAST, key)])
        found = session_holders(who, wanted.ask.name) or shares(last)
        return Busy(found[0] if found else None, UNTIL_CALLED)

    # --- waiting -----------------------------------------------------------------------------------------------

    async def _line_up(self, wanted: Wanted, until: float) -> None:
        self._watch.start()
        await self._waiting.take(wanted, until)

    async def _called(self, wanted: Wanted, wait: Wait, until: float) -> Grant | Busy:
        token = wanted.ask.token
        if not wait.session.answered() and not await self._called_just_now(wait, until):
            return await self._busy(wanted, until)
        if self._waiting.all.pop(token, None) is None:  # too late: somebody else was let in
            return await self.grant(wanted, until)
        held = self._held.add(wanted, wait.session)  # still a doubt
        try:
            *_, recorded = await self._settled(held, wait.session.answer(), until)
        except StoreUnavailable as error:
            if getattr(error.__cause__, "sqlstate", "") != LINE_TIMED_OUT:
                raise
            await self._line_up(wanted, until)
            return await self._busy(wanted, until)
        return await self._granted(wanted, held, recorded, until)

    async def _called_just_now(self, wait: Wait, until: float) -> bool:
        """Wait for the call if it is on its way: the server has given the lock before it says so."""
        if await wait.session.called(min(until, self._runtime.now() + MOMENT)):
            return True
        with contextlib.suppress(StoreUnavailable):  # then it is told with the call, or when it asks again
            which = (number(wait.session.pid), wait.wanted.facts[0])
            [given] = await self._any_session.ask(until, [Call(sql.STILL_HELD, which)])
            return bool(given) and await wait.session.called(until)
        return False
