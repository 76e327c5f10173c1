"""The one connection of a client that listens: whoever waits reads it for all who wait.

Nothing runs in the background. The first who waits reads the socket and tells the others; when it leaves, it hands the
reading on. So a waiter is woken by the kernel, and nothing is left behind.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from dibs.errors import StoreUnavailable
from dibs.runtime import Event, Runtime
from dibs.stores.postgres.port.connection import Line
from dibs.stores.postgres.port.driver import psycopg
from dibs.stores.postgres.port.statement import Call, Statement, Transaction

QUIET = 10.0
"""Seconds without a sound after which we ask the server to say something before we rely on it again."""

STAY = Statement(
    "stay",
    "SELECT set_config(name, '0', false) FROM (VALUES ('idle_session_timeout')) AS wanted (name) "
    "WHERE current_setting(name, true) IS NOT NULL",
)
"""It listens for as long as somebody waits, and is silent meanwhile."""

ARE_YOU_THERE = Statement("there", "SELECT 1")


class Listener(NamedTuple):
    """How a waiter is called."""

    channel: str
    pid: int
    """The process of the server that listens for it: while it is there, so is the waiter."""


class Hint:
    """What one waiter waits for."""

    __slots__ = ("event", "given", "here")

    def __init__(self, event: Event) -> None:
        self.event, self.given = event, False
        self.here = False
        """Whether its waiter is in `Ear.wait` just now."""


class Ear:
    """Listens on a channel of its own. *open_line* makes the connection; *first* is done on it first."""

    def __init__(
        self, open_line: Callable[[float], Awaitable[Line]], runtime: Runtime, first: Transaction = ()
    ) -> None:
        self._open, self._runtime, self._first = open_line, runtime, first
        self._hints: dict[str, Hint] = {}
        self._line: Line | None = None
        self.deaf = False
        """Whether nothing can be heard here: a pooler stands between."""
        self._begin()

    def _begin(self) -> None:
        self._mutex = self._runtime.mutex()
        self._opening = self._reading = False
        self._channel = f"dibs_{self._runtime.token()[:16]}"
        self._heard_at = -math.inf

    async def listen(self, token: str, until: float) -> Listener | None:
        """From now on hints for *token* are kept; None if none can come, and the waiter has to look for itself."""
        if self.deaf:
            return None
        self._hints.setdefault(token, Hint(self._runtime.event()))
        line = self._line
        if line is None or line.broken or not await self._answers(line, until):
            line = await self._connected(until)
        return None if line is None else Listener(self._channel, line.pid)

    async def wait(self, token: str, within: float) -> bool:
        """Return when a hint for *token* comes, True, or after *within* seconds, or when none can come any more."""
        hint, until = self._hints.get(token), self._runtime.now() + within
        line = self._line
        if hint is None or line is None or line.broken:
            await self._runtime.sleep(min(within, 0.05))
            return False
        hint.here = True
        try:
            while not hint.given and not line.broken and (left := until - self._runtime.now()) > 0:
                await self._listen_or_read(line, hint, left)
        finally:
            hint.here = False
        given, hint.given = hint.given, False
        return given

    def forget(self, token: str) -> None:
        """Nobody waits with *token* any more."""
        self._hints.pop(token, None)

    def __contains__(self, token: str) -> bool:
        """Whether somebody waits with *token*."""
        return token in self._hints

    def close(self) -> None:
        """Close the connection, unless somebody reads it: then that one sees that it is over."""
        line, self._line = self._line, None
        if line is not None and self._take_reading():
            line.close()
        elif line is not None:
            line.broken = True
        self._wake_all()

    def forked(self) -> None:
        """Forget the parent's connection."""
        if self._line is not None:
            self._line.leave_to_parent()
        self._line = None
        self._hints.clear()
        self._begin()

    # ---------------------------------------------------------------------------------------------------------

    async def _listen_or_read(self, line: Line, hint: Hint, within: float) -> None:
        hint.event.clear()
        if not self._take_reading():
            if not hint.given:
                await hint.event.wait(within)
            return
        try:
            if not hint.given:
                await self._read(line, within)
        finally:
            self._hand_on()

    async def _connected(self, until: float) -> Line | None:
        """Open the connection, unless somebody else is doing that: then that waiter looks for itself this time."""
        with self._mutex:
            if self._opening:
                return None
            self._opening = True
        try:
            line = await self._open(until)
            if line.pooled:
                self.deaf = True
                try:
                    await line.run(until, self._first)
                finally:
                    line.close()
                return None
            listen = Call(Statement(self._channel, f"LISTEN {self._channel}"))
            await line.run(until, self._first, [Call(STAY), listen])
            self._line, self._heard_at = line, self._runtime.now()
        except StoreUnavailable:  # it costs a poll, and must not cost the place in line
            return None
        else:
            return line
        finally:
            self._opening = False

    async def _answers(self, line: Line, until: float) -> bool:
        """Whether the server has been heard lately, or answers now; not asked while somebody reads."""
        if self._runtime.now() - self._heard_at < QUIET or not self._take_reading():
            return True
        try:
            await line.run(until, [Call(ARE_YOU_THERE)])
            self._tell(line)
        except StoreUnavailable:
            line.close()
            return False
        finally:
            self._hand_on()
        return True

    async def _read(self, line: Line, within: float) -> None:
        try:
            if await self._runtime.readable(line.fd, within):
                self._tell(line)
        except psycopg.Error:
            line.broken = True
            self._wake_all()

    def _tell(self, line: Line) -> None:
        self._heard_at = self._runtime.now()
        for token in line.notifications():
            hint = self._hints.get(token)
            if hint is not None:
                hint.given = True
                hint.event.set()

    def _take_reading(self) -> bool:
        with self._mutex:
            free, self._reading = not self._reading, True
        return free

    def _hand_on(self) -> None:
        """Stop reading. Somebody else who waits goes on with it."""
        self._reading = False
        for hint in list(self._hints.values()):
            if hint.here and not hint.given:
                hint.event.set()
                return

    def _wake_all(self) -> None:
        for hint in list(self._hints.values()):
            hint.event.set()
