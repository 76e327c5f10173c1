"""The locks in Consul that are compared: dibs, other libraries, and the bare requests that a lock cannot do without."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import http_locks
from http_locks import Guard, dibs_async_guard, dibs_guard, over_http_client, over_httpx
from server import HOST

BARE, BARE_HTTPX = "bare ?acquire + ?release, http.client", "the same, httpx2"
DIBS, DIBS_ASYNC = "dibs consul:", "dibs consul:, async"
CONSULOCK = "consulock over python-consul2"

PEERS = {CONSULOCK: "consulock", BARE_HTTPX: "httpx2"}
"""Whose package may be missing. tooz knows Consul no more: 6.3 was the last, and needs an oslo.utils of its time."""


def present(kinds: Sequence[str]) -> list[str]:
    """Those that can be measured here."""
    return http_locks.present(kinds, PEERS)


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
    bare = Bare(over_http_client("PUT", f"{HOST}:{port}", stack))
    return lambda: bare


def _bare_httpx(port: int, stack: contextlib.ExitStack) -> Guard:
    bare = Bare(over_httpx("PUT", f"{HOST}:{port}", stack))
    return lambda: bare


def _dibs(port: int, stack: contextlib.ExitStack) -> Guard:
    return dibs_guard(f"consul://{HOST}:{port}", stack)


def _dibs_async(port: int, stack: contextlib.ExitStack) -> Guard:
    return dibs_async_guard(f"consul://{HOST}:{port}", stack)


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
