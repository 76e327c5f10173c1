"""The locks in etcd that are compared: dibs, other libraries, and the bare requests that a lock cannot do without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import http_locks
from http_locks import Guard, InLoop, dibs_async_guard, dibs_guard, over_http_client, over_httpx
from server import HOST

BARE, BARE_HTTPX = "bare transaction + delete, http.client", "the same, httpx2"
DIBS, DIBS_ASYNC = "dibs etcd:", "dibs etcd:, async"
ETCD3GW, AETCD, TOOZ = "etcd3gw Lock", "aetcd Lock, async, gRPC", "tooz over etcd3gw"

PEERS = {ETCD3GW: "etcd3gw", AETCD: "aetcd", TOOZ: "tooz", BARE_HTTPX: "httpx2"}
"""Whose package may be missing."""


def present(kinds: Sequence[str]) -> list[str]:
    """Those that can be measured here."""
    return http_locks.present(kinds, PEERS)


class Bare:
    """One key under one lease, put if it is not there, and deleted."""

    def __init__(self, post: Callable[[str, bytes], bytes]) -> None:
        self._post = post
        lease = json.loads(post("/v3/lease/grant", b'{"TTL": "600"}'))["ID"]
        key = b64encode(b"bare/x/" + os.urandom(16)).decode()
        put = {"request_put": {"key": key, "value": key, "lease": lease}}
        absent = {"key": key, "target": "CREATE", "create_revision": "0"}
        self._take = json.dumps({"compare": [absent], "success": [put]}).encode()
        self._give = json.dumps({"key": key}).encode()

    def __enter__(self) -> None:
        assert b'"succeeded":true' in self._post("/v3/kv/txn", self._take)

    def __exit__(self, *error: object) -> None:
        self._post("/v3/kv/deleterange", self._give)


@contextlib.contextmanager
def opened(kind: str, port: int) -> Iterator[Guard]:
    """The lock of one *kind*, as something to enter."""
    with contextlib.ExitStack() as stack:
        yield _OPENERS[kind](port, stack)


def _bare(port: int, stack: contextlib.ExitStack) -> Guard:
    bare = Bare(over_http_client("POST", f"{HOST}:{port}", stack))
    return lambda: bare


def _bare_httpx(port: int, stack: contextlib.ExitStack) -> Guard:
    bare = Bare(over_httpx("POST", f"{HOST}:{port}", stack))
    return lambda: bare


def _dibs(port: int, stack: contextlib.ExitStack) -> Guard:
    return dibs_guard(f"etcd://{HOST}:{port}", stack)


def _dibs_async(port: int, stack: contextlib.ExitStack) -> Guard:
    return dibs_async_guard(f"etcd://{HOST}:{port}", stack)


def _etcd3gw(port: int, stack: contextlib.ExitStack) -> Guard:
    import etcd3gw  # noqa: PLC0415 - may be missing

    client = etcd3gw.client(host=HOST, port=port, api_path="/v3/")
    stack.callback(client.session.close)
    return lambda: client.lock("x", ttl=30)


def _aetcd(port: int, stack: contextlib.ExitStack) -> Guard:
    import aetcd  # noqa: PLC0415 - may be missing

    runner = stack.enter_context(asyncio.Runner())

    async def connect() -> Any:
        client = aetcd.Client(host=HOST, port=port)
        await client.connect()
        return client

    client = runner.run(connect())
    stack.callback(lambda: runner.run(client.close()))
    lock = client.lock(b"x", ttl=30)
    guard = InLoop(runner, lambda: lock.acquire(timeout=None), lock.release)
    return lambda: guard


def _tooz(port: int, stack: contextlib.ExitStack) -> Guard:
    from tooz import coordination  # noqa: PLC0415 - may be missing

    coordinator = coordination.get_coordinator(f"etcd3+http://{HOST}:{port}", b"bench")
    coordinator.start(start_heart=True)
    stack.callback(coordinator.stop)
    return lambda: coordinator.get_lock(b"x")


_OPENERS: dict[str, Callable[[int, contextlib.ExitStack], Guard]] = {
    BARE: _bare,
    BARE_HTTPX: _bare_httpx,
    DIBS: _dibs,
    DIBS_ASYNC: _dibs_async,
    ETCD3GW: _etcd3gw,
    AETCD: _aetcd,
    TOOZ: _tooz,
}
