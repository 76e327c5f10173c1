"""A world on the memory store, for tests of the core that run in every runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NoReturn
from weakref import WeakKeyDictionary

import pytest

from dibs.core.client import Client
from dibs.errors import LossReason
from dibs.holder import Holder, LockState, Record
from dibs.runtime import Runtime
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.store import MemoryStore
from dibs.stores.record_store import RecordStore
from dibs.stores.store import Ask, Busy, Claim, Grant, Store
from dibs.testing.contract.suite import Fixtures, Kind
from dibs.testing.simulation.runtime import SimulatedRuntime

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


class UntouchableRecords(Untouchable, RecordStore):
    """The same for records."""

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        self._touched("grant_unless_recorded")

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        self._touched("remember")

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        self._touched("finish")

    async def record(self, name: str, within: float) -> Record | None:
        self._touched("record")

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        self._touched("records")

    async def forget(self, name: str, fence: int, within: float) -> bool:
        self._touched("forget")

    async def time(self, name: str, within: float) -> float:
        self._touched("time")


def untouchable() -> Client:
    """A client in threads whose store must not be touched."""
    return Client(UntouchableRecords(), ThreadRuntime())
