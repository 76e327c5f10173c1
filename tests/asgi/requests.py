"""An application, and requests to it without a server between: what is sent and received is in the test."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import dibs.aio
from dibs.asgi import IdempotencyKeyMiddleware, by_authorization

_stores = itertools.count()


class Response:
    """What the server was given to send."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, dict[bytes, bytes](), b""
        self.complete = False
        self.parts = 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert not self.status, "a response begins once"
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            assert self.status, "a response begins with its status"
            self.body += message.get("body", b"")
            self.parts += 1
            self.complete = not message.get("more_body", False)

    @property
    def replayed(self) -> bool:
        return self.headers.get(b"idempotency-replay") == b"true"

    @property
    def detail(self) -> str:
        assert self.headers[b"content-type"] == b"application/problem+json"
        assert self.headers[b"content-length"] == str(len(self.body)).encode()
        document = json.loads(self.body)
        assert document["status"] == self.status
        return str(document["detail"])


class Client:
    """Sends requests, in pieces if it is told to."""

    def __init__(self, door: Any) -> None:
        self.door = door

    async def post(
        self,
        key: str | None = '"k"',
        body: bytes = b"{}",
        *,
        method: str = "POST",
        path: str = "/charges",
        who: str = "me",
        pieces: int = 1,
        then: Callable[[], Awaitable[MutableMapping[str, Any]]] | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> Response:
        response = Response()
        keys = [] if key is None else [(b"idempotency-key", key.encode())]
        who_header = [(b"authorization", who.encode())] if who else []
        all_headers = [*keys, *who_header, *headers]
        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": all_headers}
        size = max(1, -(-len(body) // pieces))
        parts = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
        messages = [
            {"type": "http.request", "body": part, "more_body": number < len(parts) - 1}
            for number, part in enumerate(parts)
        ]

        async def receive() -> MutableMapping[str, Any]:
            if messages:
                return messages.pop(0)
            if then is not None:
                return await then()
            return await asyncio.Future()  # nothing more comes

        await self.door(scope, receive, response.send)
        return response


class Application:
    """Answers, and counts how often; what it does besides is up to the test."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fences: list[int] = []
        self.status = 201
        self.headers = [(b"content-type", b"application/json"), (b"location", b"/charges/1"), (b"set-cookie", b"a=b")]
        self.parts = [b'{"id":1}']
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.error: BaseException | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        self.fences.append(scope.get("dibs.fence", 0))
        self.entered.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        for number, part in enumerate(self.parts):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(self.parts) - 1})


async def opened(**options: Any) -> tuple[Application, Client, dibs.aio.Client]:
    """An application behind the door, a client of it, and the one of the store."""
    store = dibs.aio.connect(f"memory:asgi {next(_stores)}")
    application = Application()
    door = IdempotencyKeyMiddleware(application, store, **{"scope": by_authorization, **options})
    return application, Client(door), store
