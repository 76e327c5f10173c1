"""What the compared locks of etcd and of Consul share: ways to send bare requests, and dibs in both colours."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import dibs
import dibs.aio

Guard = Callable[[], AbstractContextManager[object]]

Send = Callable[[str, bytes], bytes]
"""Takes the path and the body of a request; gives the body of the answer."""


def present(kinds: Sequence[str], peers: Mapping[str, str]) -> list[str]:
    """Those that can be measured here: *peers* says whose package may be missing."""
    return [kind for kind in kinds if kind not in peers or importlib.util.find_spec(peers[kind]) is not None]


def over_http_client(method: str, address: str, stack: contextlib.ExitStack) -> Send:
    """The least there is."""
    connection = http.client.HTTPConnection(address)
    stack.callback(connection.close)

    def send(path: str, body: bytes) -> bytes:
        connection.request(method, path, body)
        return connection.getresponse().read()

    return send


def over_httpx(method: str, address: str, stack: contextlib.ExitStack) -> Send:
    """What dibs uses."""
    import httpx2  # noqa: PLC0415 - may be missing

    client = stack.enter_context(httpx2.Client(base_url=f"http://{address}", trust_env=False))
    return lambda path, body: client.request(method, path, content=body).content


def dibs_guard(url: str, stack: contextlib.ExitStack) -> Guard:
    """A lock of the blocking client."""
    lock = stack.enter_context(dibs.connect(url)).lock("x")
    return lambda: lock


class InLoop:
    """An async lock, entered from blocking code: the loop is turned here, which costs some µs."""

    def __init__(self, runner: asyncio.Runner, enter: Callable[[], Any], leave: Callable[[], Any]) -> None:
        self._run, self._enter, self._leave = runner.get_loop().run_until_complete, enter, leave

    def __enter__(self) -> None:
        self._run(self._enter())

    def __exit__(self, *error: object) -> None:
        self._run(self._leave())


def dibs_async_guard(url: str, stack: contextlib.ExitStack) -> Guard:
    """A lock of the async client."""
    runner = stack.enter_context(asyncio.Runner())

    async def connect() -> dibs.aio.Client:
        return dibs.aio.connect(url)

    client = runner.run(connect())
    stack.callback(lambda: runner.run(client.close()))
    lock = client.lock("x")
    held: list[dibs.aio.Lease] = []

    async def enter() -> None:
        held.append(await lock.acquire())

    async def leave() -> None:
        await held.pop().release()

    guard = InLoop(runner, enter, leave)
    return lambda: guard
