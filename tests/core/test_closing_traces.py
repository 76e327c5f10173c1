"""Clients that were opened, used and closed leave nothing: no descriptor, no thread, and nothing on the server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.errors import NotSupported
from servers.process import until

MANY = 20

Traces = Callable[[], object]


@pytest.fixture
def traces(every_store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Traces:
    """What the server has of its clients: connections, sessions, leases, places in line, keys."""
    get = request.getfixturevalue
    kinds: dict[str, Callable[[], Traces]] = {
        "sqlite": lambda: lambda: [os.listdir(f"{tmp_path}/dibs.db.d/{folder}") for folder in ("alive", "bells")],
        "memory": lambda: lambda: None,
        "redis": lambda: lambda: of_redis(get("redis_server")),
        "redlock": lambda: lambda: [of_redis(server) for server in get("shared_redlock")],
        "postgresql": lambda: partial(of_postgres, get("postgres"), backends(get("postgres"))),
        "advisory": lambda: partial(of_postgres, get("postgres"), backends(get("postgres"))),
        "zookeeper": lambda: get("zookeeper").sessions,
        "etcd": lambda: lambda: (get("etcd_server").keys_under(), get("etcd_server").leases()),
        "consul": lambda: lambda: (get("consul").kept(), get("consul").sessions()),
    }
    return kinds[request.node.callspec.params["every_store"]]()


def of_redis(server: Any) -> object:
    return len(server.command("CLIENT", "LIST").splitlines()), sorted(server.command("KEYS", "*"))


def backends(server: Any) -> set[int]:
    """The connections of others than the one that asks."""
    ours = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    return {pid for (pid,) in server.do(f"SELECT pid FROM pg_stat_activity WHERE {ours}")}


def of_postgres(server: Any, before: set[int]) -> object:
    until(lambda: backends(server) <= before, "the server has noticed that connections have ended")
    tables = ["dibs_waiter", "dibs_share", "dibs_advisory_waiter", "dibs_advisory_share"]
    asked = [f"(SELECT count(*) FROM {table})" for table in tables]
    asked += ["(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"]
    return server.do(f"SELECT {', '.join(asked)}")


def of_this_process() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def use(url: str) -> None:
    """What a client can leave: a lease, one that it still holds, one that was handed over, a place in line."""
    with dibs.connect(url) as first, dibs.connect(url) as second:
        held = first.lock("held").acquire()
        waits = threading.Thread(target=lambda: second.lock("held").acquire().release())
        waits.start()
        kept = second.lock("kept").acquire()
        with contextlib.suppress(NotSupported):
            first.resume(first.lock("handed over").acquire().detach()).release()
        with contextlib.suppress(NotSupported), first.lock("shared", shared=True):
            pass
        held.release()
        waits.join()
    assert not kept.lost


async def use_in_a_loop(url: str) -> None:
    async with dibs.aio.connect(url) as first, dibs.aio.connect(url) as second:
        held = await first.lock("held").acquire()
        waits = asyncio.create_task(second.lock("held").acquire())
        kept = await second.lock("kept").acquire()
        with contextlib.suppress(NotSupported):
            await (await first.resume(await (await first.lock("handed over").acquire()).detach())).release()
        await held.release()
        await (await waits).release()
    assert not kept.lost


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_many_clients_leave_no_trace(colour: str, every_store: str, traces: Traces) -> None:
    def once() -> None:
        if colour == "blocking":
            use(every_store)
        else:
            asyncio.run(use_in_a_loop(every_store))

    once()  # fences and tables stay, and so do the modules that it loads
    until(lambda: traces() == traces(), "the server has noticed that connections have ended")
    ours, theirs = of_this_process(), traces()
    for _ in range(MANY):
        once()
    until(lambda: of_this_process() <= ours, f"no more than {ours} descriptors and threads")
    with contextlib.suppress(AssertionError):
        until(lambda: traces() == theirs, "the server has noticed that connections have ended")
    assert traces() == theirs
