"""Holds back a response until it is whole, so that it can be recorded before anybody sees it.

An answer that was sent and not recorded would be a lie to whoever repeats the request. One that is too large, or is an
endless stream, is let through as it comes, and says in a header that it is not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, MutableMapping
from typing import Any

from dibs.asgi.answer import Answer, Headers
from dibs.guards.asgi import Receive, Scope, Send

NOT_KEPT = (b"idempotency-replay", b"not-kept")

STREAMS = (b"text/event-stream",)
"""Kinds of responses whose parts are for now, and which may never end."""


class Recorder:
    """Stands between the application and the server, for one request."""

    def __init__(self, receive: Receive, send: Send, body: bytes, longest: int) -> None:
        self._receive, self._send, self._longest = receive, send, longest
        self._request: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self._start: MutableMapping[str, Any] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._passing = asyncio.Event()
        self.complete = False
        """Whether the application has sent all of its response."""

    @property
    def held(self) -> bool:
        """Whether nothing of the response has been sent."""
        return not self._passing.is_set()

    @property
    def status(self) -> int:
        """The status of the response; 0 if there is none."""
        return int(self._start.get("status", 0))

    def answer(self, kept: Collection[bytes]) -> Answer:
        """The response, with the headers that are *kept*; without its body if that was let through."""
        headers = [(bytes(name), bytes(value)) for name, value in self._start.get("headers", ())]
        few = [(name, value) for name, value in headers if name.lower() in kept]
        return Answer(self.status, few, b"".join(self._parts) if self.held else None)

    async def receive(self) -> MutableMapping[str, Any]:
        """The body; and after it no news that the client has gone: the work is finished for whoever asks again."""
        if self._request:
            return self._request.pop()
        await self._passing.wait()
        return await self._receive()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take a part of the response."""
        if message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        if not self.held:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
            if any(kind.startswith(STREAMS) for kind in _values(message, b"content-type")):
                await self._let_through()
        elif message["type"] == "http.response.body":
            self._parts.append(bytes(message.get("body", b"")))
            self._size += len(self._parts[-1])
            if self._size > self._longest:
                await self._let_through()

    async def deliver(self) -> None:
        """Send what was held back: all, or what the application sent of it, whose end the server misses."""
        if self.held and self._start:
            await self._send(self._start)
            await self._send(
                {"type": "http.response.body", "body": b"".join(self._parts), "more_body": not self.complete}
            )

    async def _let_through(self) -> None:
        self._passing.set()
        await self._send({**self._start, "headers": [*self._start.get("headers", ()), NOT_KEPT]})
        if self._parts:
            parts = b"".join(self._parts)
            self._parts.clear()
            await self._send({"type": "http.response.body", "body": parts, "more_body": not self.complete})


async def whole_body(receive: Receive, longest: int) -> bytes | None:
    """The body of a request; None if the client went away in the middle of it. `OverflowError` if it is longer."""
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > longest:
            raise OverflowError
        if not message.get("more_body", False):
            return b"".join(parts)


def without_extensions(scope: Scope) -> Scope:
    """The scope without ways to respond that cannot be held back, such as the path of a file."""
    return {**scope, "extensions": {}}


def _values(message: MutableMapping[str, Any], name: bytes) -> list[bytes]:
    headers: Headers = list(message.get("headers", ()))
    return [bytes(value).strip().lower() for key, value in headers if bytes(key).lower() == name]
