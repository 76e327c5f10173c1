"""The answer is whole at its last part: it is recorded and sent there, whatever the application does afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

import dibs.aio
from asgi.requests import Application, Client, Response, opened
from asgi.test_middleware import in_a_loop
from dibs.errors import LossReason
from dibs.testing.contract.watched import Watched, refuse

START = {"type": "http.response.start", "status": 201, "headers": []}


def part(body: bytes = b"charged", *, more: bool = False) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


class Told(Response):
    """A response that may be looked at before the request is over."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = asyncio.Event()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await super().send(message)
        if self.complete:
            self.whole.set()


def answering(*messages: Any, then: Callable[[Any, Any], Awaitable[None]] | None = None) -> Any:
    """An application that sends *messages*, and goes on with *then*; it counts how often it was called."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        application.calls += 1  # type: ignore[attr-defined]
        await receive()
        for message in messages:
            await send(message)
        if then is not None:
            await then(receive, send)

    application.calls = 0  # type: ignore[attr-defined]
    return application


async def begun(client: Client, response: Told) -> asyncio.Task[Response]:
    """A request whose *response* is whole, and whose application may go on."""
    door = client.door

    async def told(scope: Any, receive: Any, send: Any) -> None:
        await door(scope, receive, response.send)

    request = asyncio.ensure_future(Client(told).post())
    await response.whole.wait()
    return request


@pytest.mark.parametrize("error", [ZeroDivisionError("later"), dibs.aio.NotAcquired("its own", None, 0)])
def test_an_error_after_the_answer_does_not_undo_it(error: Exception) -> None:
    """Also one of dibs; the server gets it, for its log."""

    @in_a_loop
    async def check() -> None:
        _, client, store = await opened()

        async def fail(receive: Any, send: Any) -> None:
            raise error

        client.door._app = application = answering(START, part(), then=fail)
        response = Told()
        request = await begun(client, response)
        with pytest.raises(type(error)) as raised:
            await request
        assert raised.value is error
        assert (response.status, response.body) == (201, b"charged")
        again = await client.post()
        assert (again.status, again.body, again.replayed) == (201, b"charged", True)
        assert application.calls == 1
        assert await store.holders() == []

    check()


@pytest.mark.parametrize("parts", [[part()], [part(b"cha", more=True), part(b"rged")], [part(more=True), part(b"")]])
def test_work_after_the_answer_does_not_delay_it(parts: list[Any]) -> None:
    """It is sent, nothing is held any more, and whoever repeats the request gets it while that work goes on."""

    @in_a_loop
    async def check() -> None:
        _, client, store = await opened()
        go_on = asyncio.Event()

        async def work(receive: Any, send: Any) -> None:
            await go_on.wait()

        client.door._app = application = answering(START, *parts, then=work)
        response = Told()
        request = await begun(client, response)
        assert (response.status, response.body) == (201, b"charged")
        assert await store.holders() == []
        assert (await client.post()).replayed
        assert not request.done()
        go_on.set()
        await request
        assert application.calls == 1

    check()


@in_a_loop
async def test_a_cancel_after_the_answer_does_not_undo_it() -> None:
    """As a server cancels what goes on when it is shut down."""
    _, client, _ = await opened()

    async def work(receive: Any, send: Any) -> None:
        await asyncio.Future()

    client.door._app = answering(START, part(), then=work)
    request = await begun(client, Told())
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert (await client.post()).replayed


def cut_off_in_its_last_send(entered: asyncio.Event, go_on: asyncio.Event) -> Callable[..., Awaitable[None]]:
    """An application whose last send is cancelled once *entered* is set; what it waits for goes on with *go_on*."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        last = asyncio.ensure_future(send(part()))
        await entered.wait()
        last.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await last

    return application


@in_a_loop
async def test_a_send_that_is_cut_off_while_it_records_is_made_up_for() -> None:
    """An application that does not wait for its last part to be sent has answered all the same."""
    _, client, store = await opened()
    wire = store._context.store = Watched(store._store)
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        entered.set()
        await go_on.wait()
        return await step()

    wire.spoil("finish", slow)

    client.door._app = cut_off_in_its_last_send(entered, go_on)
    response = await client.post()
    assert (response.status, response.body, response.complete) == (201, b"charged", True)
    assert (await client.post()).replayed


@in_a_loop
async def test_after_its_answer_the_application_hears_that_the_client_has_gone() -> None:
    _, client, _ = await opened()

    async def gone() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def listen(receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"

    client.door._app = answering(START, part(), then=listen)
    assert (await client.post(then=gone)).body == b"charged"


@pytest.mark.parametrize("more", [START, part(b"more"), {"type": "http.response.trailers", "headers": []}])
def test_what_is_sent_after_the_last_part_is_refused_and_changes_nothing(more: Any) -> None:
    @in_a_loop
    async def check() -> None:
        _, client, _ = await opened()
        client.door._app = answering(START, part(), more)
        response = Told()
        request = await begun(client, response)
        with pytest.raises(RuntimeError, match="after the last part"):
            await request
        assert response.body == (await client.post()).body == b"charged"

    check()


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([START, {**START, "status": 500}], "response.start where http.response.body was expected"),
        ([START, part(more=True), START], "response.start where http.response.body was expected"),
        ([START, {"type": "http.response.pathsend", "path": "/etc/hosts"}], "pathsend"),
        ([START, {"type": "http.response.zerocopysend", "file": 1}], "zerocopysend"),
        ([part()], "response.body where http.response.start was expected"),
    ],
)
def test_what_a_server_refuses_is_refused_and_is_no_answer(messages: list[Any], match: str) -> None:
    """An answer begins once, and with its status; a file as such cannot be held back. The next may try."""

    @in_a_loop
    async def check() -> None:
        application, client, _ = await opened()
        client.door._app = answering(*messages)
        with pytest.raises(RuntimeError, match=match):
            await client.post()
        client.door._app = application
        assert not (await client.post()).replayed

    check()


@in_a_loop
async def test_a_lease_that_is_lost_after_the_answer_is_no_loss() -> None:
    """Nothing is held from the answer on: whoever takes the key afterwards does not cut off what goes on."""
    _, client, store = await opened()
    go_on = asyncio.Event()

    async def work(receive: Any, send: Any) -> None:
        await go_on.wait()

    client.door._app = answering(START, part(), then=work)
    request = await begun(client, Told())
    [record] = await store.records()
    lease = await store.lock(record.name).acquire(timeout=0)
    go_on.set()
    await request
    await lease.release()


@in_a_loop
async def test_an_answer_whose_lease_is_lost_is_not_sent() -> None:
    """It is found out as the answer is recorded; the application may end as it likes."""
    _, client, store = await opened()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        [holder] = await store.holders()
        await send(START)
        wire.spoil("finish", lambda step, within: evicted(holder, step))
        await send(part())

    async def evicted(holder: Any, step: Any) -> Any:
        await store.evict(holder.name, fence=holder.fence)
        return await step()

    wire = store._context.store = Watched(store._store)
    client.door._app = application
    response = await client.post()
    assert (response.status, response.complete) == (409, True)
    assert "has taken over" in response.detail


@in_a_loop
async def test_a_long_answer_whose_lease_is_lost_ends_in_the_middle() -> None:
    _, client, store = await opened(longest_response=5)
    application = Application()
    application.parts = [b"x" * 10, b"y"]
    wire = store._context.store = Watched(store._store)

    async def evicted(step: Any, within: float) -> Any:
        [holder] = await store.holders()
        await store.evict(holder.name, fence=holder.fence)
        return await step()

    wire.spoil("finish", evicted)
    client.door._app = application
    response = await client.post()
    assert (response.body, response.complete) == (b"x" * 10, False)


@in_a_loop
async def test_an_answer_that_could_not_be_recorded_is_sent() -> None:
    """The work was done, and its caller is better told so."""
    application, client, store = await opened(ttl=0.2)
    wire = store._context.store = Watched(store._store)
    wire.spoil_every("finish", refuse)
    response = await client.post()
    assert (response.status, response.body, response.complete) == (201, b'{"id":1}', True)
    assert len(application.bodies) == 1


@pytest.mark.parametrize("raises", [False, True])
def test_a_client_that_leaves_in_the_middle_of_a_long_answer_has_been_answered(raises: bool) -> None:
    """It was told the status, so the work counts as done, whether the application ends quietly or with an error."""

    @in_a_loop
    async def check() -> None:
        _, client, _ = await opened(longest_response=5)
        calls = list[int]()

        async def gone() -> MutableMapping[str, Any]:
            return {"type": "http.disconnect"}

        async def application(scope: Any, receive: Any, send: Any) -> None:
            calls.append(1)
            await receive()
            await send(START)
            await send(part(b"x" * 10, more=True))
            assert (await receive())["type"] == "http.disconnect"
            if raises:
                raise ConnectionError

        client.door._app = application
        if raises:
            with pytest.raises(ConnectionError):
                await client.post(then=gone)
        else:
            await client.post(then=gone)
        again = await client.post()
        assert again.status == 409
        assert again.detail.startswith("this request was carried out before, with status 201")
        assert calls == [1]

    check()


@in_a_loop
async def test_a_server_that_says_that_the_client_has_gone_undoes_nothing() -> None:
    """It says so by an OSError from *send*: then the answer is on record already."""
    application, client, _ = await opened()
    door = client.door

    async def closed(scope: Any, receive: Any, send: Any) -> None:
        async def refused(message: Any) -> None:
            raise ConnectionResetError

        await door(scope, receive, refused)

    with pytest.raises(ConnectionResetError):
        await Client(closed).post()
    assert (await client.post()).replayed
    assert len(application.bodies) == 1


@in_a_loop
async def test_a_send_that_is_cut_off_while_it_finds_the_lease_lost_sends_nothing() -> None:
    """The application goes on as if it had answered, and it has not."""
    _, client, store = await opened()
    wire = store._context.store = Watched(store._store)
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def evicted(step: Callable[[], Awaitable[Any]], within: float) -> Any:
        entered.set()
        await go_on.wait()
        [holder] = await store.holders()
        await store.evict(holder.name, fence=holder.fence)
        return await step()

    wire.spoil("finish", evicted)

    client.door._app = cut_off_in_its_last_send(entered, go_on)
    response = await client.post()
    assert (response.status, response.complete) == (409, True)


@in_a_loop
async def test_an_answer_that_comes_as_the_application_is_cancelled_for_its_lost_lease_is_not_sent() -> None:
    """One task of it sends the last part when another has been cancelled, and does not know it yet."""
    _, client, store = await opened()
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def answer() -> None:
            await go_on.wait()
            await send(START)
            await send(part())

        child = asyncio.ensure_future(answer())
        entered.set()
        try:
            await asyncio.Future()  # as a task group waits
        finally:
            await child

    client.door._app = application
    request = asyncio.ensure_future(client.post())
    await entered.wait()
    [lease] = store._context.held.leases()
    go_on.set()
    lease.lost._happen(LossReason.EVICTED)
    response = await request
    assert (response.status, response.complete) == (409, True)
