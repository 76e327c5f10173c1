"""The ``Idempotency-Key`` header for any ASGI application: a request that is repeated gets the answer of the first.

Follows draft-ietf-httpapi-idempotency-key-header: 400 where a key is required and missing, or malformed; 409 while the
first request runs; 422 if the key was used with another request; else the first answer, success or error.

Why a key belongs to its caller: whoever could send the key of somebody else would be given that one's answer, or keep
that one's request from being carried out. So *scope* says who calls, and keys of different callers never meet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from typing import Any

from dibs.asgi.answer import Response, asked_for, digest, from_bytes, key_in, problem, values_of
from dibs.asgi.recorder import Recorder, whole_body, without_extensions
from dibs.core.checks import Seconds, check_no_address, shown
from dibs.core.client import DAY, DEFAULT_TTL, Client
from dibs.core.deferred import check_answers
from dibs.core.idempotent.call import Call
from dibs.core.idempotent.idempotent import Idempotent
from dibs.core.idempotent.outcome import shortened
from dibs.errors import KeyReused, LeaseLost, Misuse, NotAcquired, StoreUnavailable
from dibs.guards.asgi import App, Receive, Scope, Send
from dibs.log import logger
from dibs.stores.record_store import LONGEST_RECORD

HEADER = b"idempotency-key"

METHODS = frozenset({"POST", "PATCH"})
"""The methods that HTTP itself does not call idempotent."""

KEPT_HEADERS = frozenset(
    {
        *(b"content-type", b"content-language", b"content-disposition", b"content-encoding", b"content-location"),
        *(b"location", b"etag", b"last-modified", b"link", b"cache-control", b"vary"),
    }
)
"""Headers that are sent again. Not those that are of one answer or one caller, such as Date and Set-Cookie."""

LONGEST_REQUEST = 1024 * 1024
LONGEST_RESPONSE = 192 * 1024

AGAIN = ((b"retry-after", b"1"),)


class RequestFailed(Exception):
    """The application raised an error, or gave an answer that says "try again"."""


def retryable(status: int) -> bool:
    """Whether the answer says that the request was not carried out, and may be later: it is not kept."""
    return status >= 500 or status in {401, 408, 409, 425, 429}


def by_authorization(scope: Scope) -> str | None:
    """Who calls, by the ``Authorization`` header: the same credentials are the same caller.

    A token that is renewed between two tries makes another caller of it, and the work is done again: then say who it is
    by what the token stands for, such as ``lambda scope: scope["user"].id``.
    """
    values = values_of(scope, b"authorization")
    return digest(*values) if values else None


def anyone(scope: Scope) -> str:  # noqa: ARG001 - it is a *scope* function
    """All callers are one: for services that have no callers to tell apart, and whose answers anybody may see."""
    return ""


class IdempotencyKeyMiddleware:
    """Does the work of a request with an ``Idempotency-Key`` once, and sends its answer again to whoever repeats it.

    ``app = IdempotencyKeyMiddleware(app, client, scope=by_authorization)``, with a client of `dibs.aio`. *scope* says
    who calls, from the scope of the request: `by_authorization`, `anyone`, or a function of yours; None means that it
    cannot be told, and the request is refused. *required* says which requests must have a key. Only *methods* are
    looked at.

    *ttl* and *keep* are those of `Client.idempotent`; *timeout* is how long a repeated request waits for the first
    before it gets 409. *retryable* says which statuses are not kept. Answers longer than *longest_response* bytes, and
    event streams, are passed on but not kept: whoever repeats the request is told so, and the work is not done again.
    """

    def __init__(
        self,
        app: App,
        client: Client,
        *,
        scope: Callable[[Scope], str | None],
        methods: Collection[str] = METHODS,
        required: Callable[[Scope], bool] = lambda scope: False,  # noqa: ARG005
        fingerprint: Callable[[Scope, bytes], object] = asked_for,
        retryable: Callable[[int], bool] = retryable,
        headers: Collection[bytes] = KEPT_HEADERS,
        ttl: Seconds = DEFAULT_TTL,
        timeout: Seconds = 0,
        keep: Seconds = DAY,
        longest_request: int = LONGEST_REQUEST,
        longest_response: int = LONGEST_RESPONSE,
    ) -> None:
        if not isinstance(client, Client):
            raise Misuse(f"{type(client).__name__} is no client for async code: connect one with dibs.aio")
        for what, given in {"methods": methods, "headers": headers}.items():
            if isinstance(given, str | bytes):
                raise Misuse(f"{what}={given!r}: it is a set, even of one: {{{given!r}}}")
        check_answers(scope=scope, required=required, fingerprint=fingerprint, retryable=retryable)
        _check_size(longest_request, "longest_request")
        _check_size(longest_response, "longest_response")
        if longest_response > LONGEST_RESPONSE:
            raise Misuse(f"longest_response={longest_response}: it is at most {LONGEST_RESPONSE}, what a store keeps")
        self._app, self._client, self._scope = app, client, scope
        self._methods, self._required, self._fingerprint = frozenset(methods), required, fingerprint
        self._retryable, self._headers = retryable, frozenset(name.lower() for name in headers)
        self._options: dict[str, Any] = {"ttl": ttl, "timeout": timeout, "keep": keep}
        self._longest_request, self._longest_response = longest_request, longest_response
        self._block("check", None)  # refuse bad options here, not with the first request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry the request out, or send the answer of the first."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
        elif found := values_of(scope, HEADER):
            await self._with_key(found, scope, receive, send)
        elif self._required(scope):
            await _send(send, problem(400, "this request needs an Idempotency-Key, a new one for each new request"))
        else:
            await self._app(scope, receive, send)

    async def _with_key(self, found: list[bytes], scope: Scope, receive: Receive, send: Send) -> None:
        key, caller = key_in(found), self._caller(scope)
        if key is None:
            await _send(send, problem(400, 'Idempotency-Key is one string of 1 to 255 characters, as in "8e03978e"'))
            return
        if caller is None:
            await _send(send, problem(400, "a request with an Idempotency-Key has to say who sends it"))
            return
        try:
            body = await whole_body(receive, self._longest_request)
        except OverflowError:
            most = f"a request with an Idempotency-Key has at most {self._longest_request} bytes"
            await _send(send, problem(413, most))
            return
        if body is not None:
            name = f"idempotency-key:{digest(caller.encode())[:32]}:{key}"
            block = self._block(name, self._fingerprint(scope, body))
            recorder = Recorder(receive, send, body, self._longest_response)
            await self._answer(block, scope, recorder, send)

    def _caller(self, scope: Scope) -> str | None:
        caller: object = self._scope(scope)
        if not isinstance(caller, str | None):
            raise Misuse(
                f"scope= says who calls as text (str), or None, and returned {type(caller).__name__}: use str()"
            )
        check_no_address(caller or "", "caller")
        return caller

    def _block(self, name: str, about: object) -> Idempotent:
        return self._client.idempotent(
            name, fingerprint=about, dump=Response.to_bytes, load=from_bytes, **self._options
        )

    async def _answer(self, block: Idempotent, scope: Scope, recorder: Recorder, send: Send) -> None:
        try:
            async with AsyncExitStack() as blocks:
                call = await blocks.enter_async_context(block)
                if not call.replayed:
                    recorder.record = functools.partial(self._record, blocks, call, recorder, send)
                    await self._carry_out(call, scope, recorder)
        except RequestFailed as failed:
            await recorder.deliver()
            if failed.__cause__ is not None:
                raise failed.__cause__ from None
        except NotAcquired:
            await _send(send, problem(409, "a request with this Idempotency-Key is being carried out", *AGAIN))
        except KeyReused:
            await _send(send, problem(422, "this Idempotency-Key was used with another request; take a new one"))
        except LeaseLost:
            await _lost(recorder, send)
        except StoreUnavailable as error:
            _log(error)
            if recorder.held:
                unable = "requests with an Idempotency-Key cannot be handled at the moment"
                await _send(send, problem(503, unable, *AGAIN))
        else:
            await (_send(send, _again(call.result)) if call.replayed else recorder.deliver())

    async def _carry_out(self, call: Call, scope: Scope, recorder: Recorder) -> None:
        """Let the application work. What it raises is its own, also if it is an error of dibs."""
        inner = without_extensions(scope)
        inner["dibs.fence"] = call.fence
        try:
            await self._app(inner, recorder.receive, recorder.send)
        except Exception as exc:
            self._gone(call, recorder)
            raise RequestFailed(shortened(exc)) from exc
        if not recorder.complete and not self._gone(call, recorder):
            raise RequestFailed("the application ended without a whole response")

    def _gone(self, call: Call, recorder: Recorder) -> bool:
        """Whether the client left in the middle of an answer that was let through; its status says what was done."""
        if recorder.complete or not recorder.left or self._retryable(recorder.status):
            return False
        with suppress(LeaseLost):  # which the end of the block tells
            call.done(Response(recorder.status, [], None))
        return True

    async def _record(self, blocks: AsyncExitStack, call: Call, recorder: Recorder, send: Send) -> bool:
        """The answer is complete: record it now and let it be sent, whatever the application does afterwards."""
        if call.lease.lost:
            return False  # the application is about to be cancelled, and the end of the block tells why
        return await self._client._runtime.shielded(self._end(blocks.pop_all(), call, recorder, send))

    async def _end(self, block: AsyncExitStack, call: Call, recorder: Recorder, send: Send) -> bool:
        try:
            async with block:
                if self._retryable(recorder.status):
                    raise RequestFailed(f"status {recorder.status}")
                answer = recorder.answer(self._headers)
                small = len(answer.to_bytes()) <= LONGEST_RECORD - 1024
                call.done(answer if small else answer._replace(headers=[], body=None))
        except RequestFailed:
            pass
        except LeaseLost:
            await _lost(recorder, send)
            return False
        except StoreUnavailable as error:
            _log(error)  # the work was done, and its caller is better told so
        return True


async def _lost(recorder: Recorder, send: Send) -> None:
    """Another request has taken over, and its answer counts; if ours was already being sent, it ends in the middle."""
    recorder.drop()
    if recorder.held:
        await _send(send, problem(409, "another request with this Idempotency-Key has taken over", *AGAIN))


def _log(error: StoreUnavailable) -> None:
    logger().warning("an idempotent request: %s", error)


def _check_size(size: object, what: str) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise Misuse(f"{what}={shown(size)}: it is a number of bytes")


def _again(answer: Response) -> Response:
    """The answer of the first request, for whoever repeats it."""
    if answer.body is None:
        detail = f"this request was carried out before, with status {answer.status}; its answer was not kept"
        return problem(409, detail, first_status=answer.status)
    return answer._replace(headers=[*answer.headers, (b"idempotency-replay", b"true")])


async def _send(send: Send, answer: Response) -> None:
    body = answer.body or b""
    sized = answer.status not in {204, 304}  # these have no body, and may not say how long it is
    headers = [*answer.headers, *([(b"content-length", str(len(body)).encode())] if sized else [])]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
