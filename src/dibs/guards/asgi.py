"""A guard at the door of a web application: pure ASGI, so it goes before any framework.

A request that changes something carries the fence of the lock under which it is made, as ``Fencing-Token: 17``. The
door refuses what is stale. A request that passed it may still be overtaken inside: the application claims once more,
in the transaction that writes, with the fence that it finds in ``scope["dibs.fence"]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Protocol, TypeAlias

from dibs.core.checks import checked_name
from dibs.core.deferred import check_answers
from dibs.errors import Misuse, StaleFence

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"fencing-token"

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})

TITLES = {
    400: "Bad request for a fenced resource",
    409: "Stale fencing token",
    428: "Fencing token required",
}


class Claims(Protocol):
    """A guard as the door needs it: `MemoryGuard`, or one of yours that takes a connection from a pool.

    Requests come at the same time, and a connection does one thing at a time: ``guard.on(conn)`` is for one user.
    """

    def claim(self, name: str, fence: int, /) -> Awaitable[object] | object:
        """Show a fence; `StaleFence` if it is refused."""


class FenceMiddleware:
    """Refuses requests with a stale ``Fencing-Token``: ``app = FenceMiddleware(app, MemoryGuard())``.

    *name* tells the lock that protects what a request is about, from its scope: by default its path. A token below
    one that was seen is answered with 409 and a problem document that tells the current one; one that is no number,
    with 400. A request without one gets *missing*, 428 or 400; None lets it pass. Only *methods* are looked at.
    """

    def __init__(
        self,
        app: App,
        guard: Claims,
        *,
        name: Callable[[Scope], str] = lambda scope: str(scope["path"]),
        methods: Collection[str] = CHANGES,
        missing: int | None = 428,
    ) -> None:
        if missing not in (None, 400, 428):
            raise Misuse(f"missing={missing!r}: it is 428, 400, or None to let requests without a token pass")
        check_answers(name=name)
        self._app, self._guard, self._name = app, guard, name
        self._methods, self._missing = frozenset(methods), missing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] == "http" and scope["method"] in self._methods:
            problem = await self._refused(scope)
            if problem is not None:
                await _answer(send, problem)
                return
        await self._app(scope, receive, send)

    async def _refused(self, scope: Scope) -> dict[str, object] | None:
        """What is wrong with the request; None if it may pass."""
        tokens = [value for key, value in scope["headers"] if key.lower() == HEADER]
        if not tokens:
            return None if self._missing is None else problem(self._missing, "send your lease's fence as Fencing-Token")
        fence = parsed(tokens)
        if fence is None:
            return problem(400, "Fencing-Token is one whole number from 1 to 9223372036854775807, sent once")
        try:
            name = checked_name(self._name(scope))
        except Misuse as misuse:  # a path can be longer than a name
            return problem(400, str(misuse))
        try:
            answer = self._guard.claim(name, fence)
            if isinstance(answer, Awaitable):
                await answer
        except StaleFence as stale:
            return problem(409, str(stale), fence=fence, current=stale.current)
        scope["dibs.fence"] = fence
        return None


def parsed(tokens: list[bytes]) -> int | None:
    """The fence in the header's values; None if it is none."""
    if len(tokens) != 1 or not re.fullmatch(rb"[0-9]{1,19}", tokens[0]):
        return None
    fence = int(tokens[0])
    return fence if 0 < fence < 2**63 else None


def problem(status: int, detail: str, **facts: object) -> dict[str, object]:
    """A problem document (RFC 9457)."""
    return {"type": "about:blank", "title": TITLES[status], "status": status, "detail": detail, **facts}


async def _answer(send: Send, document: dict[str, object]) -> None:
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": document["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})
