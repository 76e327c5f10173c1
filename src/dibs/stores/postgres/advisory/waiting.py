"""Places of one client in the server's line for locks, each in a session of its own that the server calls in turn."""

from __future__ import annotations

import contextlib

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Runtime
from dibs.stores.postgres.advisory import mode, sql
from dibs.stores.postgres.advisory.asking import AnySession
from dibs.stores.postgres.advisory.holding import Wait, Wanted
from dibs.stores.postgres.advisory.sessions import Sessions
from dibs.stores.postgres.port.statement import Call
from dibs.stores.postgres.port.values import number, numbers

GLANCE = 0.001
"""Seconds between two looks whether a session stands in line already."""

CANCELLED = 0.05
"""Seconds after which a cancel is repeated: one that came before the session stood in line had no effect."""


class WaitingSessions:
    """The places, by token."""

    def __init__(self, sessions: Sessions, any_session: AnySession, runtime: Runtime) -> None:
        self._sessions, self._any_session, self._runtime = sessions, any_session, runtime
        self.begin()

    def begin(self) -> None:
        """Nobody waits, as in a new client."""
        self.all: dict[str, Wait] = {}
        self._stood: set[int] = set()
        """The sessions, by their process, of which the server may have a row that says who waits."""

    async def take(self, wanted: Wanted, until: float) -> None:
        """Stand in the server's line. Not waited for: the session is called when it is our turn."""
        key, token, facts = wanted.key, wanted.ask.token, wanted.facts
        session = await self._sessions.spare(key, token, until)
        if session is None:
            return
        self.all[token] = Wait(session, wanted)
        self._stood.add(session.pid)
        try:
            await session.line_up(
                until,
                [Call(sql.FORGET_GONE), Call(sql.RECORD_WAITER, (facts[0], *facts[4:]))],
                *mode.standing_in_line(wanted),
            )
            # Whoever asks later shall not be before us: only when it stands in line has it a place there.
            which = (number(session.pid), facts[0])
            while True:  # its condition is not here because of tests/test_loops.py
                if session.answered() or (await self._any_session.ask(until, [Call(sql.STANDS_IN_LINE, which)]))[0]:
                    break
                await session.called(self._runtime.now() + GLANCE)
        except BaseException:
            if self.all.pop(token, None) is not None:
                self._sessions.drop(session)
            raise

    async def wait(self, token: str, within: float) -> bool:
        """Wait until the session that stands in line is called; False if there is none."""
        wait = self.all.get(token)
        if wait is not None:
            await wait.session.called(self._runtime.now() + within)
        return wait is not None

    async def step_out(self, token: str, until: float) -> bool:
        """Take our session out of the server's line, if *token* stands there. If that does not work it is closed."""
        wait = self.all.pop(token, None)
        if wait is None:
            return False
        session = wait.session
        try:
            while True:  # the same
                if session.answered() or (now := self._runtime.now()) >= until:
                    break
                await self._any_session.ask(until, [Call(sql.CANCEL, (number(session.pid),))])
                await session.called(min(until, now + CANCELLED))
            if not session.answered():
                raise OutcomeUnknown(self._sessions.source.shown, "the session still stands in line")
            session.step_out()
            await session.run(until, *mode.giving_back(wait.key, token))
        except BaseException as error:
            self._sessions.drop(session)
            if not isinstance(error, StoreUnavailable):
                raise
        else:
            session.keys.pop(wait.key, None)
            self._sessions.trim()
        return True

    async def tidy(self, until: float) -> None:
        """Take back what the server was told of who waits. The next to wait would do that, but there may be none."""
        stood, self._stood = self._stood, set()
        if stood:
            with contextlib.suppress(StoreUnavailable):
                await self._any_session.ask(until, [Call(sql.FORGET_US, (numbers(sorted(stood)),))])
