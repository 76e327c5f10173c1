"""Connections to several servers at once: what a waiter does when they end, and what is read when time is over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.run import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.redlock.connect import connected
from dibs.stores.redlock.options import RedlockOptions, sources_of
from dibs.stores.redlock.port.nodes import NodeAnswer, Nodes, PlainCommand
from servers.process import until
from servers.redis import RedisServer

LONG = 60.0


@pytest.fixture
def three(start_redis: Callable[..., RedisServer]) -> list[RedisServer]:
    return [start_redis() for _ in range(3)]


def kill_listeners(servers: list[RedisServer]) -> None:
    """Once each node has one."""
    for server in servers:
        until(partial(listener_killed, server), "a client listens")


def listener_killed(server: RedisServer) -> bool:
    return bool(server.command("CLIENT", "KILL", "TYPE", "pubsub"))


def test_a_thread_that_waits_goes_on_when_its_listeners_have_ended(three: list[RedisServer]) -> None:
    nodes = connected(sources_of([server.url for server in three], blocking=True), ThreadRuntime(), RedlockOptions())
    assert run(nodes.expect("token", LONG))
    waiter = threading.Thread(target=lambda: run(nodes.wait("token", LONG)), daemon=True)
    waiter.start()
    kill_listeners(three)
    waiter.join(10)
    assert not waiter.is_alive()
    run(nodes.close())


def test_a_task_that_waits_goes_on_when_its_listeners_have_ended(three: list[RedisServer]) -> None:
    async def main() -> None:
        runtime = AsyncioRuntime()
        runtime.enter()
        nodes: Nodes = connected(sources_of([s.url for s in three], blocking=False), runtime, RedlockOptions())
        assert await nodes.expect("token", LONG)
        waiter = asyncio.create_task(nodes.wait("token", LONG))
        await asyncio.to_thread(kill_listeners, three)
        await asyncio.wait_for(waiter, 10)
        await nodes.close()

    asyncio.run(main())


# --- a process that stood still while the answers came, as after SIGSTOP or in a long signal handler ----------


async def heard_late(nodes: Nodes, servers: list[RedisServer], now: Callable[[], float]) -> list[NodeAnswer | None]:
    """What a round hears whose time was over when it looked, although all nodes have answered."""
    first = nodes.round()
    for node in range(3):
        first.send(node, PlainCommand("PING"))
        assert await first.next(now() + LONG)
    first.end()
    asking = nodes.round()
    for node in range(3):
        asking.send(node, PlainCommand("PING"))
    for server in servers:
        server.command("PING")  # it has one thread: what it was asked before this is answered
    over = now()
    heard = [await asking.next(over) for _ in range(3)]
    asking.end()
    await nodes.close()
    return heard


def test_a_thread_that_stood_still_hears_what_came_meanwhile(three: list[RedisServer]) -> None:
    runtime = ThreadRuntime()
    nodes = connected(sources_of([server.url for server in three], blocking=True), runtime, RedlockOptions())
    assert None not in run(heard_late(nodes, three, runtime.now))


def test_a_loop_that_stood_still_hears_what_came_meanwhile(three: list[RedisServer]) -> None:
    async def main() -> list[NodeAnswer | None]:
        runtime = AsyncioRuntime()
        runtime.enter()
        nodes: Nodes = connected(sources_of([s.url for s in three], blocking=False), runtime, RedlockOptions())
        return await heard_late(nodes, three, runtime.now)

    assert None not in asyncio.run(main())
