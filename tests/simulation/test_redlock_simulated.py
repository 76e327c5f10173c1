"""A Redlock passes the contract of all stores in the simulated runtime, on three nodes in memory."""

from __future__ import annotations

from typing import ClassVar
from weakref import WeakKeyDictionary

import pytest
from redlock_nodes import Stores

from dibs.runtime import Runtime
from dibs.stores.store import Store
from dibs.testing.contract import StoreContract
from dibs.testing.faults import Network, Odds, SimulatedServer
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler


class TestSimulated(StoreContract):
    runtimes = ("simulated",)
    stores = Stores(3)
    networks: ClassVar[WeakKeyDictionary[Scheduler, Network]] = WeakKeyDictionary()

    @pytest.fixture
    def url(self) -> str:
        return "nodes of the simulation"

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        assert isinstance(runtime, SimulatedRuntime)
        network = self.networks.setdefault(
            runtime.world, Network(runtime.world, SimulatedServer(runtime.world), Odds())
        )
        return self.stores(network, runtime, namespace=namespace)
