"""A world on the memory store, for tests of the core that run in every runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NoReturn
from weakref import WeakKeyDictionary

import pytest

from dibs.core.client import Client
from dibs.errors import LossReason
from dibs.holder import Holder, LockState
from dibs.ports.memory import MemoryServer
from dibs.runtime import Runtime
from dibs.runtime.simulated import SimulatedRuntime
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.memory import MemoryStore
from dibs.stores.store import Ask, Busy, Claim, Grant, Store
from dibs.testing.contract.suite import Fixtures, Kind

EPOCH = 1_700_000_000_000_000


class CoreTests(Fixtures, Kind):
    """Its coroutines are tests, with a fixture *world*."""

    servers: ClassVar[WeakKeyDictionary[Runtime, MemoryServer]] = WeakKeyDictionary()

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"memory:{tmp_path.name}"

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        if not isinstance(runtime, SimulatedRuntime):
            return super().open_store(url, namespace, runtime)
        server = MemoryServer(runtime.now, lambda: EPOCH + round(runtime.now() * 1e6))
        return MemoryStore(self.servers.setdefault(runtime, server), namespace, runtime)


class Untouchable(Store):
    """Fails the test when anything is sent."""

    guarantees = MemoryStore.guarantees

    def __init__(self) -> None:
        self.touched: list[str] = []

    def _touched(self, step: str) -> NoReturn:
        self.touched.append(step)
        raise AssertionError(f"{step} was sent, although the call cannot be right")

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        self._touched("grant")

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        self._touched("renew")

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        self._touched("release")

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        self._touched("wait")

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        self._touched("evict")

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        self._touched("holders")

    async def show(self, name: str, within: float) -> LockState:
        self._touched("show")


def untouchable() -> Client:
    """A client in threads whose store must not be touched."""
    return Client(Untouchable(), ThreadRuntime())
