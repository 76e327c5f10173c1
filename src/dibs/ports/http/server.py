"""One server and its connections: one for each request that is under way, kept for the next."""

from __future__ import annotations

from typing import Literal, Self

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.http.message import HttpAnswer, HttpRequest
from dibs.ports.http.source import Endpoint
from dibs.ports.http.wire import Clock, Dial, Wire

MOST_IDLE = 64
"""Connections that are kept while they are not in use."""


class HttpServer:
    """One endpoint and its connections; the connection used last is used first."""

    def __init__(self, endpoint: Endpoint, dial: Dial, now: Clock) -> None:
        self.name = str(endpoint)
        self._endpoint, self._dial, self._now = endpoint, dial, now
        self._idle: list[Wire] = []
        self._closed = False

    async def wire(self, until: float) -> Wire:
        """A connection for one request; `StoreUnavailable` if there is none by the moment *until*."""
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            # To find that out here costs a µs. Found out by asking, nobody could say what became of the request.
            if not wire.is_stale():
                return wire
            wire.close()
        try:
            return await self._dial(self._endpoint, until)
        except (OSError, ValueError) as exc:  # ValueError: a host that is no name
            raise StoreUnavailable(self.name, f"no connection: {problem(exc)}") from exc

    async def ask(self, wire: Wire, request: HttpRequest, until: float) -> HttpAnswer:
        """Send *request* on *wire* and return the answer."""
        try:
            await wire.send(wire.conversation.ask(request), until)
            return await self._rest(wire, until)
        except (OSError, ValueError) as exc:
            raise OutcomeUnknown(self.name, problem(exc)) from exc

    async def finish(self, wire: Wire, until: float) -> bool:
        """Wait for the answer to a request whose caller was cancelled; tell whether it came."""
        try:
            await self._rest(wire, until)
        except (OSError, ValueError):
            return False
        return wire.conversation.reusable

    def keep(self, wire: Wire) -> None:
        """Keep *wire* for the next request, or close it if it cannot be used again."""
        if wire.conversation.reusable and len(self._idle) < MOST_IDLE and not self._closed:
            self._idle.append(wire)
        else:
            wire.close()

    def close(self) -> None:
        """Close the connections; one in use is closed when its request is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        """Forget the parent's connections."""
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.forked()

    async def _rest(self, wire: Wire, until: float) -> HttpAnswer:
        while (answer := wire.conversation.answer()) is None:
            await wire.hear(until)
        return answer


class Stream:
    """An answer without an end, read line by line."""

    def __init__(self, server: str, wire: Wire, now: Clock) -> None:
        self.server = server
        self._wire, self._now = wire, now
        self._begun, self._lines = b"", list[bytes]()

    async def line(self, within: float) -> bytes | None:
        """The next line; None if none came *within* seconds. `StoreUnavailable` when the answer has ended."""
        until = self._now() + within
        try:
            while not self._lines:
                piece = self._wire.conversation.piece()
                if piece is None:
                    await self._wire.hear(until)
                elif piece:
                    self._take(piece)
                else:
                    raise StoreUnavailable(self.server, "it ended its answer")
        except TimeoutError:
            return None
        except (OSError, ValueError) as exc:
            raise StoreUnavailable(self.server, problem(exc)) from exc
        return self._lines.pop(0)

    def close(self) -> None:
        """Close the connection: nothing more of the answer is read."""
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> Literal[False]:
        self.close()
        return False

    def _take(self, piece: bytes) -> None:
        *whole, self._begun = (self._begun + piece).split(b"\n")
        self._lines += [line for line in whole if line.strip()]


def problem(exc: BaseException) -> str:
    """The text of *exc*, for a message."""
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return str(exc) or type(exc).__name__
