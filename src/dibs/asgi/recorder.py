"""Holds back a response until it is whole, so that it can be recorded before anybody sees it.

An answer that was sent and not recorded would be a lie to whoever repeats the request. One that is too large, or is an
endless stream, is let through as it comes, and says in a header that it is not kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from dibs.asgi.answer import Headers, Response
from dibs.guards.asgi import Receive, Scope, Send

NOT_KEPT = (b"idempotency-replay", b"not-kept")

STREAMS = (b"text/event-stream",)
"""Kinds of responses whose parts are for now, and which may never end."""


class Recorder:
    """Stands between the application and the server, for one request.

    *record* is called once, when the application has sent the last part of its response and before that part goes to
    the server: it says whether the response may be sent.
    """

    def __init__(self, receive: Receive, send: Send, body: bytes, longest: int) -> None:
        self._receive, self._send, self._longest = receive, send, longest
        self._request: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        self._start: MutableMapping[str, Any] = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._begun = False
        self._news = asyncio.Event()  # when the application may hear that the client has gone
        self.record: Callable[[], Awaitable[bool]] = _nothing
        self.held = True
        """Whether nothing of the response was let through before it was whole."""
        self.complete = False
        """Whether the application has sent all of its response."""
        self.left = False
        """Whether the client has gone, and the application was told so, in the middle of its response."""

    @property
    def status(self) -> int:
        """The status of the response; 0 if there is none."""
        return int(self._start.get("status", 0))

    def answer(self, kept: Collection[bytes]) -> Response:
        """The response, with the headers that are *kept*; without its body if that was let through."""
        headers = [(bytes(name), bytes(value)) for name, value in self._start.get("headers", ())]
        few = [(name, value) for name, value in headers if name.lower() in kept]
        return Response(self.status, few, b"".join(self._parts) if self.held else None)

    async def receive(self) -> MutableMapping[str, Any]:
        """Pass on the body; hide that the client has gone until the answer is recorded, so that the work ends."""
        if self._request:
            return self._request.pop()
        await self._news.wait()
        message = await self._receive()
        self.left = self.left or message["type"] == "http.disconnect"
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take a part of the response; refuse what a server refuses."""
        self._check(message["type"])
        if message["type"] == "http.response.start":
            self._start = message
            if any(kind.startswith(STREAMS) for kind in _values(message, b"content-type")):
                await self._let_through()
            return
        self._parts.append(bytes(message.get("body", b"")))
        self._size += len(self._parts[-1])
        self.complete = not message.get("more_body", False)
        if self.complete:
            await self._end()
        elif self._size > self._longest or not self.held:
            await self._let_through()

    async def deliver(self) -> None:
        """Send what was held back: the whole answer, or the part of it that the application sent, without an end."""
        if self._start and not self._begun:
            self._begun = True
            headers = [*self._start.get("headers", ()), *([] if self.held else [NOT_KEPT])]
            await self._pass_on({**self._start, "headers": headers})
        if self._parts:
            body = b"".join(self._parts)
            self._parts.clear()
            await self._pass_on({"type": "http.response.body", "body": body, "more_body": not self.complete})

    def drop(self) -> None:
        """Forget what is still here: it is not to be sent."""
        self._parts.clear()
        self._begun = True

    def _check(self, kind: str) -> None:
        if self.complete:
            raise RuntimeError(f"the application sent {kind} after the last part of its response")
        expected = "http.response.body" if self._start else "http.response.start"
        if kind != expected:
            raise RuntimeError(f"the application sent {kind} where {expected} was expected")

    async def _end(self) -> None:
        self.held = self.held and self._size <= self._longest
        try:
            wanted = await self.record()
        finally:
            self._news.set()  # what comes from here on is no part of the request
        if wanted:
            await self.deliver()

    async def _let_through(self) -> None:
        self.held = False
        self._news.set()
        await self.deliver()

    async def _pass_on(self, message: MutableMapping[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:  # which is how a server says that the client has gone
            self.left = True
            raise


async def _nothing() -> bool:
    return True


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
