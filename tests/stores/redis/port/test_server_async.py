"""Tasks on one server: one connection, replies matched by order, whatever is cancelled, late or lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import dibs.aio as dibs
from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime.clock import boot_time
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.dial import AsyncDialer
from dibs.stores.redis.port.server_async import AsyncServer
from dibs.stores.redis.port.source import RedisAddress, from_url
from dibs.testing.proxy import FaultProxy
from servers.node import Node
from servers.process import until
from servers.redis import RedisServer
from tempo import took


@pytest.fixture
def proxy(redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy]) -> FaultProxy:
    return fault_proxy(redis_server)


def on_server(port: int, main: Callable[[AsyncServer], Coroutine[Any, Any, None]]) -> None:
    """Run *main* with a server at *port*, in a loop of its own."""

    async def run() -> None:
        source, _ = from_url("redis://localhost", blocking=False)
        server = AsyncServer(RedisAddress("127.0.0.1", port), AsyncDialer(source.login), boot_time)
        try:
            await main(server)
        finally:
            await server.close()

    asyncio.run(run())


def test_tasks_share_one_connection_and_get_their_own_replies(redis_server: RedisServer) -> None:
    async def main(server: AsyncServer) -> None:
        texts = [b"%d" % number for number in range(2000)]
        assert await asyncio.gather(*(server.call(command("ECHO", text), 5.0) for text in texts)) == texts
        assert len(redis_server.command("CLIENT", "LIST").splitlines()) == 2

    on_server(redis_server.port, main)


def test_what_is_asked_for_in_one_turn_of_the_loop_leaves_in_one_write(redis_server: RedisServer) -> None:
    async def main(server: AsyncServer) -> None:
        await server.call(command("PING"), 1.0)
        assert server._pipeline is not None
        connection, writes = server._pipeline.connection, list[bytes]()
        send = connection.send

        def counted(data: bytes) -> None:
            writes.append(data)
            send(data)

        connection.send = counted
        await asyncio.gather(*(server.call(command("PING"), 1.0) for _ in range(50)))
        assert len(writes) == 2  # the first goes at once

    on_server(redis_server.port, main)


@pytest.mark.parametrize("seed", range(5))
def test_cancelled_requests_never_shift_the_replies_of_others(proxy: FaultProxy, seed: int) -> None:
    chance = random.Random(seed)

    async def main(server: AsyncServer) -> None:
        async def ask(number: int) -> None:
            text = b"%d" % number
            try:
                async with asyncio.timeout(chance.choice([0.0, 0.002, 0.01, 5.0])):
                    assert await server.call(command("ECHO", text), chance.choice([0.001, 0.01, 5.0])) == text
            except (TimeoutError, OutcomeUnknown):
                pass

        await server.call(command("PING"), 1.0)
        with proxy.delay(replies=0.005):
            for _ in range(10):
                await asyncio.gather(*(ask(number) for number in range(50)))
        assert await server.call(command("ECHO", "last"), 5.0) == b"last"
        assert proxy.accepted == 1

    on_server(proxy.port, main)


def test_an_answer_that_is_late_is_unknown_in_time_and_disturbs_nothing(proxy: FaultProxy) -> None:
    async def main(server: AsyncServer) -> None:
        await server.call(command("PING"), 1.0)
        with proxy.delay(replies=2.0):
            with took(1), pytest.raises(OutcomeUnknown):
                await server.call(command("ECHO", "late"), 0.05)
            assert await server.call(command("ECHO", "next"), 5.0) == b"next"
        assert proxy.accepted == 1

    on_server(proxy.port, main)


def test_a_connection_that_stays_silent_is_given_up_and_replaced(proxy: FaultProxy) -> None:
    async def main(server: AsyncServer) -> None:
        await server.call(command("PING"), 1.0)
        fault = proxy.black_hole("replies")
        with pytest.raises(OutcomeUnknown):
            await server.call(command("ECHO", "lost"), 0.6)
        fault.lift()
        assert await server.call(command("ECHO", "next"), 5.0) == b"next"
        assert proxy.accepted == 2

    on_server(proxy.port, main)


def test_when_the_connection_breaks_all_callers_are_told(proxy: FaultProxy) -> None:
    async def main(server: AsyncServer) -> None:
        await server.call(command("PING"), 1.0)
        with proxy.black_hole("replies"):
            asking = [asyncio.ensure_future(server.call(command("PING"), 5.0)) for _ in range(20)]
            await asyncio.sleep(0.02)
            proxy.cut()
            answers = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(answer) for answer in answers} == {OutcomeUnknown}
        assert await server.call(command("ECHO", "next"), 5.0) == b"next"

    on_server(proxy.port, main)


def test_a_caller_cancelled_while_connecting_leaves_the_connection_to_the_others(proxy: FaultProxy) -> None:
    async def main(server: AsyncServer) -> None:
        first = asyncio.ensure_future(server.call(command("PING"), 5.0))
        second = asyncio.ensure_future(server.call(command("ECHO", "second"), 5.0))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == b"second"
        assert proxy.accepted == 1

    on_server(proxy.port, main)


def test_a_connection_that_does_not_open_is_certain_and_in_time() -> None:
    async def main(server: AsyncServer) -> None:
        with took(1):
            with pytest.raises(StoreUnavailable) as refused:
                await server.call(command("PING"), 0.1)
            assert type(refused.value) is StoreUnavailable

    on_server(1, main)


def test_a_pipeline_that_fails_reports_nothing_behind_our_back(proxy: FaultProxy) -> None:
    async def main(server: AsyncServer) -> None:
        await server.call(command("PING"), 1.0)
        with proxy.black_hole("replies"), pytest.raises(OutcomeUnknown):
            await server.calls(command("PING") * 50, 50, 0.6)
        assert await server.calls(command("ECHO", "a") + command("ECHO", "b"), 2, 5.0) == [b"a", b"b"]

    on_server(proxy.port, main)


def test_a_loop_that_stood_still_reads_what_has_come_before_it_gives_up(redis_server: RedisServer) -> None:
    async def main(server: AsyncServer) -> None:
        await server.call(command("PING"), 1.0)
        asking = [asyncio.ensure_future(server.call(command("ECHO", "x" * 10_000), 0.1)) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(0.15)
        assert {len(reply) for reply in await asyncio.gather(*asking)} == {10_000}

    on_server(redis_server.port, main)


def test_closing_a_client_leaves_neither_connection_nor_task(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with dibs.connect(redis_server.url) as client, dibs.connect(redis_server.url) as other:
            lease = await client.lock("a").acquire(timeout=0)
            with pytest.raises(dibs.NotAcquired):
                await other.lock("a").acquire(timeout=0.3)
            await lease.release()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    until(lambda: len(redis_server.command("CLIENT", "LIST").splitlines()) == 1, "the server has seen the ends")


def test_a_thousand_tasks_are_served_through_two_connections(redis_server: RedisServer) -> None:
    async def main() -> None:
        async with dibs.connect(redis_server.url) as client:

            async def work(number: int) -> None:
                async with client.lock(f"{number % 300}"):
                    await asyncio.sleep(0)

            await asyncio.gather(*(work(number) for number in range(1000)))
            assert len(redis_server.command("CLIENT", "LIST").splitlines()) <= 3

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_replies_stay_with_their_requests_however_often_the_connection_breaks(proxy: FaultProxy, seed: int) -> None:
    chance = random.Random(seed)

    async def main(server: AsyncServer) -> None:
        over = False

        async def ask(task: int) -> None:
            number = 0
            while not over:
                number += 1
                text = b"%d-%d" % (task, number)
                try:
                    reply = await server.call(command("ECHO", text), chance.choice([0.02, 1.0]))
                except StoreUnavailable:
                    continue
                assert reply == text

        tasks = [asyncio.ensure_future(ask(task)) for task in range(30)]
        for _ in range(60):
            await asyncio.sleep(0.01 * chance.random())
            with proxy.delay(replies=0.01 * chance.random()):
                await asyncio.sleep(0.005)
                proxy.cut(chance.choice(["fin", "rst"]))
        over = True
        await asyncio.gather(*tasks)

    on_server(proxy.port, main)


def test_what_is_asked_on_a_connection_that_is_over_is_never_answered_by_another(proxy: FaultProxy) -> None:
    """Two callers that wait for a connection get it one after the other, and it may break in between."""

    async def main(server: AsyncServer) -> None:
        old = await server._opened(5.0)
        old.connection.abort()
        with proxy.delay(replies=0.05):
            asking = asyncio.ensure_future(server.call(command("ECHO", "new"), 5.0))
            while server._pipeline is old:
                await asyncio.sleep(0.001)
            with pytest.raises(StoreUnavailable) as refused:
                old.ask(command("ECHO", "old"), boot_time() + 5.0)
            assert type(refused.value) is StoreUnavailable
            assert await asking == b"new"

    on_server(proxy.port, main)
