"""The locks in ZooKeeper that are compared: dibs in both colours, kazoo's and tooz', and the bare calls."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from kazoo.client import KazooClient

import dibs

Guard = Callable[[], AbstractContextManager[object]]

BARE, DIBS, KAZOO, TOOZ = "bare create + delete", "dibs", "kazoo Lock", "tooz"

KINDS = [BARE, DIBS, KAZOO, TOOZ]


class Bare:
    """An ephemeral sequential node that comes and goes; nobody looks who is first."""

    def __init__(self, client: Any) -> None:
        self._client = client
        client.ensure_path("/bare")

    def __enter__(self) -> None:
        self._node = self._client.create("/bare/x-", b"", ephemeral=True, sequence=True)

    def __exit__(self, *error: object) -> None:
        self._client.delete(self._node)


@contextlib.contextmanager
def opened(kind: str, port: int) -> Iterator[Guard]:
    """The lock of one *kind*."""
    with {DIBS: _dibs, TOOZ: _tooz}.get(kind, _kazoo)(kind, port) as guard:
        yield guard


@contextlib.contextmanager
def _dibs(_kind: str, port: int) -> Iterator[Guard]:
    with dibs.connect(f"zookeeper://127.0.0.1:{port}") as client:
        lock = client.lock("x")
        yield lambda: lock


@contextlib.contextmanager
def _kazoo(kind: str, port: int) -> Iterator[Guard]:
    client = KazooClient(f"127.0.0.1:{port}", timeout=30)
    client.start()
    bare = Bare(client) if kind == BARE else None
    yield (lambda: bare) if bare else lambda: client.Lock("/kazoo/x")
    client.stop()
    client.close()


@contextlib.contextmanager
def _tooz(_kind: str, port: int) -> Iterator[Guard]:
    coordination: Any = importlib.import_module("tooz.coordination")  # slow, and nobody else needs it
    coordinator = coordination.get_coordinator(f"zookeeper://127.0.0.1:{port}", b"bench")
    coordinator.start()
    yield lambda: coordinator.get_lock("x")
    coordinator.stop()
