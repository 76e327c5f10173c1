"""The locks in Consul that are compared: dibs, other libraries, and the bare requests that a lock cannot do without."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import dibs
import dibs.aio
from consul_server import HOST
from etcd_locks import InLoop

Guard = Callable[[], AbstractContextManager[object]]

BARE, BARE_HTTPX = "bare ?acquire + ?release, http.client", "the same, httpx2"
DIBS, DIBS_ASYNC = "dibs consul:", "dibs consul:, async"
CONSULOCK = "consulock over python-consul2"

PEERS = {CONSULOCK: "consulock", BARE_HTTPX: "httpx2"}
"""Whose package may be missing. tooz knows Consul no more: 6.3 was the last, and needs an oslo.utils of its time."""


def present(kinds: Sequence[str]) -> list[str]:
    """Those that can be measured here."""
    return [kind for kind in kinds if kind not in PEERS or importlib.util.find_spec(PEERS[kind]) is not None]


class Bare:
    """One key under one session."""

    def __init__(self, put: Callable[[str, bytes], bytes]) -> None:
        session = json.loads(put("/v1/session/create", b'{"TTL": "3600s", "LockDelay": "0s"}'))["ID"]
        self._put, self._key = put, f"/v1/kv/bare/x?%s={session}"

    def __enter__(self) -> None:
        assert self._put(self._key % "acquire", b"holder").startswith(b"true")

    def __exit__(self, *error: object) -> None:
        assert self._put(self._key % "release", b"").startswith(b"true")


@contextlib.contextmanager
def opened(kind: str, port: int) -> Iterator[Guard]:
    """The lock of one *kind*, as something to enter."""
    with contextlib.ExitStack() as stack:
        yield _OPENERS[kind](port, stack)


def _bare(port: int, stack: contextlib.ExitStack) -> Guard:
    connection = http.client.HTTPConnection(HOST, port)
    stack.callback(connection.close)

    def put(path: str, body: bytes) -> bytes:
        connection.request("PUT", path, body)
        return connection.getresponse().read()

    bare = Bare(put)
    return lambda: bare


def _bare_httpx(port: int, stack: contextlib.ExitStack) -> Guard:
    import httpx2  # noqa: PLC0415 - may be missing

    client = stack.enter_context(httpx2.Client(base_url=f"http://{HOST}:{port}", trust_env=False))
    bare = Bare(lambda path, body: client.put(path, content=body).content)
    return lambda: bare


def _dibs(port: int, stack: contextlib.ExitStack) -> Guard:
    lock = stack.enter_context(dibs.connect(f"consul://{HOST}:{port}")).lock("x")
    return lambda: lock


def _dibs_async(port: int, stack: contextlib.ExitStack) -> Guard:
    runner = stack.enter_context(asyncio.Runner())

    async def connect() -> dibs.aio.Client:
        return dibs.aio.connect(f"consul://{HOST}:{port}")

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


class Acquired:
    """A lock of consulock, entered."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        assert self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _consulock(port: int, _stack: contextlib.ExitStack) -> Guard:
    import consul  # noqa: PLC0415 - may be missing
    import consulock  # noqa: PLC0415

    client = consul.Consul(HOST, port)
    guard = Acquired(consulock.ConsulLock("consulock/x", client))
    return lambda: guard


_OPENERS: dict[str, Callable[[int, contextlib.ExitStack], Guard]] = {
    BARE: _bare,
    BARE_HTTPX: _bare_httpx,
    DIBS: _dibs,
    DIBS_ASYNC: _dibs_async,
    CONSULOCK: _consulock,
}
