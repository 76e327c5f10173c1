"""A repeated request gets the answer of the first, and each way in which a key can be wrong has its status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import StreamingResponse

import dibs
import dibs.aio
from asgi.requests import Application, Client, Response, opened
from dibs.asgi import IdempotencyKeyMiddleware, anyone, by_authorization
from dibs.errors import Misuse, StoreUnavailable


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run_it() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    run_it.__name__, run_it.__doc__ = test.__name__, test.__doc__
    return run_it


@in_a_loop
async def test_a_repeated_request_gets_the_first_answer() -> None:
    """Status, body, and those headers that are not of one answer alone."""
    application, client, _ = await opened()
    first = await client.post(body=b'{"amount":1}', pieces=3)
    again = await client.post(body=b'{"amount":1}')
    assert application.bodies == [b'{"amount":1}']
    assert application.fences[0] > 0
    assert (first.status, first.body, first.headers[b"set-cookie"]) == (201, b'{"id":1}', b"a=b")
    assert (again.status, again.body, again.headers[b"location"]) == (201, b'{"id":1}', b"/charges/1")
    assert b"set-cookie" not in again.headers
    assert again.headers[b"content-length"] == b"8"
    assert again.replayed
    assert not first.replayed


@in_a_loop
async def test_quoted_or_bare_it_is_the_same_key() -> None:
    application, client, _ = await opened()
    await client.post('"8e03978e"')
    assert (await client.post("8e03978e")).replayed
    assert len(application.bodies) == 1


@in_a_loop
async def test_an_error_of_the_client_is_an_answer_as_well() -> None:
    application, client, _ = await opened()
    application.status, application.parts = 404, [b""]
    assert [(await client.post()).status for _ in range(2)] == [404, 404]
    assert len(application.bodies) == 1


@in_a_loop
async def test_an_answer_that_says_try_again_is_not_kept() -> None:
    application, client, _ = await opened()
    for status in (500, 503, 429, 401):
        application.status = status
        response = await client.post()
        assert (response.status, response.body) == (status, b'{"id":1}')
    application.status = 201
    assert [(await client.post()).replayed for _ in range(2)] == [False, True]
    assert len(application.bodies) == 5


@in_a_loop
async def test_an_error_of_the_application_is_its_own_and_the_next_may_try() -> None:
    """Also an error of dibs, which is not about this key."""
    application, client, store = await opened()
    for error in (ZeroDivisionError("x"), StoreUnavailable("its own", "is away"), dibs.NotAcquired("its own", None, 0)):
        application.error = error
        with pytest.raises(type(error)) as raised:
            await client.post()
        assert raised.value is error
    application.error = None
    assert (await client.post()).status == 201
    [record] = await store.records()
    assert b'"attempt":4' in record.data


@in_a_loop
async def test_an_application_that_answers_and_then_raises_has_answered() -> None:
    """As the outermost layer of Starlette does: it says 500, and raises for the log of the server."""
    application, client, _ = await opened()
    response = Response()

    async def failing(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"sorry"})
        raise ZeroDivisionError

    client.door._app = failing
    original, client.door = client.door, _sending_to(client.door, response)
    with pytest.raises(ZeroDivisionError):
        await client.post()
    assert (response.status, response.body, response.complete) == (500, b"sorry", True)
    original._app, client.door = application, original
    assert (await client.post()).status == 201


@in_a_loop
async def test_half_an_answer_is_never_sent_as_a_whole_one() -> None:
    """The server misses its end and cuts the connection; the next may try."""
    application, client, _ = await opened()
    for error in (None, ZeroDivisionError("in the middle")):
        response = Response()

        async def failing(scope: Any, receive: Any, send: Any, error: Exception | None = error) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            if error is not None:
                raise error

        door = client.door
        door._app, client.door = failing, _sending_to(door, response)
        with pytest.raises(ZeroDivisionError) if error else contextlib.nullcontext():
            await client.post()
        assert (response.body, response.complete) == (b"half", False)
        client.door = door
    client.door._app = application
    assert [(await client.post()).replayed for _ in range(2)] == [False, True]


@in_a_loop
async def test_who_calls_is_told_as_text() -> None:
    application, client, _ = await opened(scope=lambda scope: 7)
    with pytest.raises(Misuse, match=r"scope= says who calls as text .* returned int"):
        await client.post()
    assert application.bodies == []


@pytest.mark.parametrize(
    "wrong",
    [
        *({"methods": "POST"}, {"headers": b"location"}, {"longest_request": -1}, {"longest_request": True}),
        *({"longest_response": -1}, {"longest_response": True}, {"longest_response": 1.5}),
    ],
)
def test_options_that_cannot_be_right_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=f"^{next(iter(wrong))}="):
        asyncio.run(opened(**wrong))


@in_a_loop
async def test_another_request_under_the_same_key_is_422() -> None:
    application, client, _ = await opened()
    await client.post(body=b"1")
    for other in ({"body": b"2"}, {"path": "/refunds", "body": b"1"}, {"method": "PATCH", "body": b"1"}):
        response = await client.post(**other)
        assert response.status == 422
        assert "take a new one" in response.detail
    assert len(application.bodies) == 1


@in_a_loop
async def test_while_the_first_is_carried_out_others_get_409() -> None:
    application, client, _ = await opened()
    application.go_on.clear()
    first = asyncio.ensure_future(client.post())
    await application.entered.wait()
    busy = await client.post()
    assert busy.status == 409
    assert busy.headers[b"retry-after"] == b"1"
    assert "is being carried out" in busy.detail
    assert (await client.post(body=b"another")).status == 422
    application.go_on.set()
    assert (await first).status == 201
    assert (await client.post()).replayed


@in_a_loop
async def test_who_may_wait_gets_the_answer_of_the_first() -> None:
    application, client, _ = await opened(timeout=15)
    application.go_on.clear()
    first = asyncio.ensure_future(client.post())
    await application.entered.wait()
    second = asyncio.ensure_future(client.post())
    await asyncio.sleep(0)
    application.go_on.set()
    assert not (await first).replayed
    assert (await second).replayed


@in_a_loop
async def test_a_missing_key_is_400_where_one_is_required() -> None:
    application, client, _ = await opened(required=lambda scope: scope["path"] == "/charges")
    assert (await client.post(None, path="/other")).status == 201
    response = await client.post(None)
    assert response.status == 400
    assert "needs an Idempotency-Key" in response.detail
    assert len(application.bodies) == 1


@in_a_loop
async def test_a_malformed_key_is_400() -> None:
    application, client, _ = await opened()
    for key in ("", '""', '"a', "a b"):
        assert (await client.post(key)).status == 400
    assert (await client.post(headers=((b"Idempotency-Key", b'"k"'),))).status == 400
    assert application.bodies == []


@in_a_loop
async def test_keys_of_different_callers_never_meet() -> None:
    """Nobody is given the answer of another, or kept from being served by another's key."""
    application, client, _ = await opened()
    await client.post(who="me")
    other = await client.post(who="you", body=b"other")
    assert (other.status, other.replayed) == (201, False)
    nobody = await client.post(who="")
    assert nobody.status == 400
    assert "who sends it" in nobody.detail
    assert len(application.bodies) == 2


@in_a_loop
async def test_credentials_are_not_in_the_store() -> None:
    _, client, store = await opened()
    await client.post('"visible"', who="Bearer very-secret")
    [record] = await store.records()
    assert record.name.endswith(":visible")
    assert "secret" not in record.name
    assert b"secret" not in record.data


@in_a_loop
async def test_all_callers_may_be_one() -> None:
    _, client, _ = await opened(scope=anyone)
    await client.post(who="")
    assert (await client.post(who="")).replayed


@in_a_loop
async def test_what_has_no_key_passes_untouched() -> None:
    """Other methods, requests without a key, websockets and the lifespan: with their own receive and send."""
    seen = list[Any]()

    async def application(*call: Any) -> None:
        seen.append(call)

    door = IdempotencyKeyMiddleware(application, dibs.aio.connect("memory:untouched"), scope=by_authorization)
    headers = [(b"idempotency-key", b'"k"')]
    calls = [
        ({"type": "http", "method": "GET", "headers": headers}, object(), object()),
        ({"type": "http", "method": "PUT", "headers": headers}, object(), object()),
        ({"type": "http", "method": "POST", "headers": []}, object(), object()),
        ({"type": "websocket", "headers": headers}, object(), object()),
        ({"type": "lifespan"}, object(), object()),
    ]
    for call in calls:
        await door(*call)  # type: ignore[arg-type]
    assert seen == calls


@in_a_loop
async def test_a_request_that_is_too_long_is_413() -> None:
    application, client, _ = await opened(longest_request=10)
    assert (await client.post(body=b"x" * 10, pieces=4)).status == 201
    assert (await client.post('"other"', body=b"x" * 11, pieces=4)).status == 413
    assert len(application.bodies) == 1


@in_a_loop
async def test_an_answer_that_is_too_long_is_passed_on_and_said_not_to_be_kept() -> None:
    """The work is not done again all the same."""
    application, client, _ = await opened(longest_response=10)
    application.parts = [b"x" * 6, b"y" * 6, b"z" * 6]
    first = await client.post()
    assert first.body == b"x" * 6 + b"y" * 6 + b"z" * 6
    assert first.complete
    assert first.headers[b"idempotency-replay"] == b"not-kept"
    again = await client.post()
    assert again.status == 409
    assert again.detail == "this request was carried out before, with status 201; its answer was not kept"
    assert len(application.bodies) == 1


@in_a_loop
async def test_an_event_stream_is_passed_on_as_it_comes() -> None:
    application, client, _ = await opened()
    application.headers = [(b"content-type", b"text/event-stream")]
    application.parts = [b"data: 1\n\n", b"data: 2\n\n", b""]
    first = await client.post()
    assert first.parts == 3
    assert (await client.post()).status == 409


@in_a_loop
async def test_headers_that_are_too_long_do_not_make_the_work_be_done_again() -> None:
    application, client, _ = await opened()
    application.headers = [(b"link", b"x" * 300_000)]
    assert (await client.post()).status == 201
    assert (await client.post()).status == 409
    assert len(application.bodies) == 1


@in_a_loop
async def test_an_answer_without_a_body_has_no_length() -> None:
    application, client, _ = await opened()
    application.status, application.parts, application.headers = 204, [b""], []
    await client.post()
    again = await client.post()
    assert (again.status, again.body) == (204, b"")
    assert b"content-length" not in again.headers


@in_a_loop
async def test_a_client_that_leaves_in_the_middle_of_its_request_has_asked_for_nothing() -> None:
    application, client, store = await opened()

    async def door(scope: Any, receive: Any, send: Any) -> None:
        await original(scope, _leaving(receive), send)

    original, client.door = client.door, door
    response = await client.post(body=b"abcdef", pieces=3)
    assert response.status == 0
    assert application.bodies == []
    assert await store.holders() == []


@in_a_loop
async def test_a_client_that_leaves_while_the_work_is_done_finds_the_answer_later() -> None:
    """The application is not told, since the work is for whoever asks again."""
    application, client, _ = await opened()
    told = list[str]()

    async def gone() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        news = asyncio.ensure_future(receive())
        await asyncio.sleep(0.01)
        told.extend(["disconnect"] if news.done() else [])
        news.cancel()
        await application(scope, _body(b"{}"), send)

    client.door._app = listening
    await client.post(then=gone)
    assert told == []
    assert (await client.post()).replayed


@in_a_loop
async def test_a_request_that_is_cancelled_may_be_sent_again() -> None:
    application, client, _ = await opened()
    application.go_on.clear()
    first = asyncio.ensure_future(client.post())
    await application.entered.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    application.go_on.set()
    assert (await client.post()).status == 201


@in_a_loop
async def test_who_lost_its_lease_does_not_answer_with_its_own_result() -> None:
    application, client, store = await opened()
    application.go_on.clear()
    late = asyncio.ensure_future(client.post())
    await application.entered.wait()
    [holder] = await store.holders()
    await store.evict(holder.name, fence=holder.fence)
    application.go_on.set()
    application.parts = [b"the other's"]
    assert (await client.post()).status == 201
    response = await late
    assert response.status == 409
    assert "has taken over" in response.detail
    assert (await client.post()).body == b"the other's"


@in_a_loop
async def test_a_store_that_is_away_is_503_and_nothing_is_begun() -> None:
    application = Application()
    store = dibs.aio.connect("redis://127.0.0.1:1/0")
    door = IdempotencyKeyMiddleware(application, store, scope=anyone)
    response = await Client(door).post()
    assert response.status == 503
    assert response.headers[b"retry-after"] == b"1"
    assert application.bodies == []


@in_a_loop
async def test_ways_to_respond_that_cannot_be_held_back_are_not_offered() -> None:
    _, client, _ = await opened()
    offered = list[Any]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        offered.append(scope["extensions"])
        await Application()(scope, receive, send)

    client.door._app = application
    await client.post()
    assert offered == [{}]


@in_a_loop
async def test_what_starlette_puts_between_works() -> None:
    """Its middleware reads the body and listens whether the client is there; a stream is kept when it is whole."""
    app, served = FastAPI(), list[str]()

    async def between(request: Request, call_next: Any) -> Any:
        await request.body()
        return await call_next(request)

    app.add_middleware(BaseHTTPMiddleware, dispatch=between)
    app.add_middleware(IdempotencyKeyMiddleware, client=dibs.aio.connect("memory:starlette"), scope=by_authorization)

    @app.post("/plain")
    async def plain(request: Request) -> dict[str, Any]:
        served.append("plain")
        return {"sent": await request.json(), "gone": await request.is_disconnected()}

    @app.post("/stream")
    async def stream() -> StreamingResponse:
        served.append("stream")
        return StreamingResponse(iter(["a", "b"]))

    client = Client(app)
    for path, body in (("/plain", b'{"sent":{},"gone":false}'), ("/stream", b"ab")):
        answers = [await client.post(f'"{path}"', path=path) for _ in range(2)]
        assert [(answer.status, answer.body, answer.replayed) for answer in answers] == [
            (200, body, False),
            (200, body, True),
        ]
    assert served == ["plain", "stream"]


def test_options_that_cannot_be_right_are_misuse() -> None:
    async def application(*_: Any) -> None:
        """Never called."""

    with pytest.raises(Misuse, match=r"connect one with dibs\.aio"):
        IdempotencyKeyMiddleware(application, dibs.connect("memory:x"), scope=anyone)  # type: ignore[arg-type]
    client = dibs.aio.connect("memory:x")
    for bad in ({"longest_response": 10**6}, {"ttl": 0}, {"keep": -1}, {"timeout": -1}):
        with pytest.raises(Misuse):
            IdempotencyKeyMiddleware(application, client, scope=anyone, **bad)  # type: ignore[arg-type]


def _sending_to(door: Any, response: Response) -> Any:
    async def call(scope: Any, receive: Any, send: Any) -> None:
        await door(scope, receive, response.send)

    return call


def _leaving(receive: Any) -> Any:
    first = [True]

    async def leave() -> MutableMapping[str, Any]:
        if first:
            first.clear()
            message: MutableMapping[str, Any] = await receive()
            return message
        return {"type": "http.disconnect"}

    return leave


def _body(body: bytes) -> Any:
    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
