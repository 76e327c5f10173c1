"""Talks to one Redis server from an event loop: all tasks share one connection, opened when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.graveyard import bury
from dibs.ports.redis_dial import AsyncDialer, check_greeting
from dibs.ports.redis_dialogue import Dialogue
from dibs.ports.redis_line import Line
from dibs.ports.redis_source import Address

LONGEST_CONNECT = 5.0
"""Seconds that opening a connection may take, whoever asked for it and has gone meanwhile."""


class AsyncServer:
    """One server, as the tasks of one event loop see it."""

    def __init__(self, address: Address, dial: AsyncDialer, now: Callable[[], float]) -> None:
        self.address, self.name = address, str(address)
        self._dial, self._now = dial, now
        self._dialogue: Dialogue | None = None
        self._opening: asyncio.Task[Dialogue] | None = None

    def call(self, data: bytes, within: float) -> Awaitable[Any]:
        """Send one command and return its reply; an error reply is returned, not raised."""
        dialogue = self._dialogue
        if dialogue is None or dialogue.line.is_over:
            return self._call_later(data, within)
        return dialogue.ask(data, self._now() + within)

    async def calls(self, data: bytes, count: int, within: float) -> list[Any]:
        """Send *count* commands in one go and return their replies."""
        until = self._now() + within
        dialogue = await self._opened(within)
        return await dialogue.ask_all(data, count, until)

    async def connect(self) -> Line:
        """A new connection, greeted."""
        hello, line = await self._dial.greeting(), Line(self._now)
        line.take_over(await self._dial.writer(self.address, LONGEST_CONNECT))
        greeting = Dialogue(self.name, line, self._now)
        until = self._now() + LONGEST_CONNECT
        try:
            if hello:
                check_greeting(self.name, await greeting.ask_all(b"".join(hello), len(hello), until))
        except OutcomeUnknown as exc:  # nothing but a greeting was sent
            line.abort()
            raise StoreUnavailable(self.name, exc.problem) from exc
        except BaseException:
            line.abort()
            raise
        return line

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
        if self._dialogue is not None:
            self._dialogue.line.abort()
            await asyncio.wait([self._dialogue.line.ended], timeout=1.0)

    def forked(self) -> None:
        """Forget the parent's connection and its loop; they are never collected, since that would close them."""
        bury((self._dialogue, self._opening))
        self._dialogue = self._opening = None

    async def _call_later(self, data: bytes, within: float) -> Any:
        until = self._now() + within
        dialogue = await self._opened(within)
        return await dialogue.ask(data, until)

    async def _opened(self, within: float) -> Dialogue:
        """The connection, opened by a task of its own: whoever waits for it may be cancelled."""
        if self._dialogue is not None and not self._dialogue.line.is_over:
            return self._dialogue
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._is_open)
        dialogue: Dialogue = await outcome(self._opening, within, self.name)
        return dialogue

    async def _open(self) -> Dialogue:
        return Dialogue(self.name, await self.connect(), self._now)

    def _is_open(self, task: asyncio.Task[Dialogue]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._dialogue = task.result()


async def outcome(task: asyncio.Task[Any], within: float, name: str) -> Any:
    """What *task*, which opens a connection for many, comes to; it goes on if we do not wait for it any longer."""
    await asyncio.wait([task], timeout=within)
    if not task.done():
        raise StoreUnavailable(name, f"no connection within {within:.3g} s")
    if task.cancelled():
        raise StoreUnavailable(name, "this client was closed")
    error = task.exception()
    if error is not None:
        raise StoreUnavailable(name, getattr(error, "problem", str(error))) from error
    return task.result()
