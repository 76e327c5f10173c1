"""Every built-in store passes the contract in every runtime."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from weakref import WeakKeyDictionary

import pytest

from dibs.runtime import Runtime
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.store import MemoryStore
from dibs.stores.sqlite.deaths import bury
from dibs.stores.sqlite.port.database import Database
from dibs.stores.sqlite.port.runner import BlockingPort
from dibs.stores.sqlite.schema import prepare
from dibs.stores.sqlite.store import SQLiteStore
from dibs.stores.sqlite.url import file_of
from dibs.stores.store import Store
from dibs.testing.contract import StoreContract
from dibs.testing.simulation.runtime import SimulatedRuntime

EPOCH = 1_700_000_000_000_000
"""What the wall clock of a simulation shows, in µs, when its boot clock shows 0."""


class TestMemory(StoreContract):
    servers: ClassVar[WeakKeyDictionary[Runtime, MemoryServer]] = WeakKeyDictionary()

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"memory:{tmp_path.name}"

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        """A simulation has a server of its own, whose clocks are the simulated ones."""
        if not isinstance(runtime, SimulatedRuntime):
            return super().open_store(url, namespace, runtime)
        server = MemoryServer(runtime.now, lambda: EPOCH + round(runtime.now() * 1e6))
        return MemoryStore(self.servers.setdefault(runtime, server), namespace, runtime)


class SimulatedDatabase(Database):
    def wall_clock(self) -> int:
        return EPOCH + self.moment()


class TestSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/dibs.db"

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        """In a simulation its steps take no time, and so no thread."""
        if not isinstance(runtime, SimulatedRuntime):
            return super().open_store(url, namespace, runtime)
        database = SimulatedDatabase(file_of(url).path, namespace, runtime.now, prepare, bury)
        return SQLiteStore(BlockingPort(database, runtime), runtime)
