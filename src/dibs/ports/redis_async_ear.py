"""The one subscription that a client has at a server, for an event loop: messages come in as callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import hiredis

from dibs.errors import StoreUnavailable
from dibs.ports.graveyard import bury
from dibs.ports.redis_command import command
from dibs.ports.redis_ear import QUIET
from dibs.ports.redis_errors import refused
from dibs.ports.redis_hints import Hint, Hints
from dibs.ports.redis_line import Line
from dibs.ports.redis_multiplexed import AsyncServer, outcome


class AsyncEar:
    """One connection that listens."""

    def __init__(self, server: AsyncServer, hints: Hints, now: Callable[[], float]) -> None:
        self._server, self.hints, self._now = server, hints, now
        self._line: Line | None = None
        self._opening: asyncio.Task[Line] | None = None
        self._heard_at = self._pinged_at = 0.0

    async def subscribe(self, channel: bytes, within: float) -> None:
        """Return when messages on *channel* are sure to come from now on; raise `StoreUnavailable` if they will not."""
        if channel in self.hints.confirmed:
            return
        until = self._now() + within
        line = self._line or await self._opened(within)
        if line.is_over:
            raise StoreUnavailable(self._server.name, "the subscription broke")
        hint, data = self.hints.subscribing(channel)
        line.send(data)
        await hint.event.wait(max(0.0, until - self._now()))
        if isinstance(hint.problem, hiredis.ReplyError):
            raise refused(self._server.name, hint.problem)
        if channel not in self.hints.confirmed:
            raise StoreUnavailable(self._server.name, f"no subscription: {hint.problem or 'no answer in time'}")

    async def wait(self, hint: Hint, within: float) -> None:
        """Return when *hint* says that it is worth asking, or after *within* seconds."""
        until = self._now() + within
        self._check_pulse()
        while (left := min(until, hint.ask_at) - self._now()) > 0:
            hint.event.clear()
            await hint.event.wait(left)

    def let_go(self, channel: bytes) -> None:
        """Nobody waits on *channel* any more."""
        if self._line is not None:
            self._line.send(command("SUNSUBSCRIBE", channel))

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            line = self._line
            line.abort()
            await asyncio.wait([line.ended], timeout=1.0)

    def forked(self) -> None:
        """Forget the parent's connection."""
        bury(self._line)
        self._line = self._opening = None

    async def _opened(self, within: float) -> Line:
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._is_open)
        line: Line = await outcome(self._opening, within, self._server.name)
        return line

    async def _open(self) -> Line:
        line = await self._server.connect()
        line.received, line.lost = self._received, self._lost
        return line

    def _is_open(self, task: asyncio.Task[Line]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._heard_at, self._pinged_at = self._now(), 0.0
            self._line = None if task.result().is_over else task.result()

    def _received(self, reply: object) -> None:
        self._heard_at, self._pinged_at = self._now(), 0.0
        self.hints.message(reply)

    def _lost(self, exc: Exception | None) -> None:
        self._line = None
        self.hints.broke(exc or ConnectionResetError("the server closed the connection"))

    def _check_pulse(self) -> None:
        now = self._now()
        if self._line is None or now < self._heard_at + QUIET:
            return
        if not self._pinged_at:
            self._pinged_at = now
            self._line.send(command("PING"))
        elif now > self._pinged_at + QUIET:
            self._line.abort()
