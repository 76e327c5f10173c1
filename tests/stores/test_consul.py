"""The Consul store on real agents: the contract, and what Consul and others do to locks."""

from __future__ import annotations

import pytest

from dibs.testing.contract import StoreContract
from servers.consul import ConsulServer


class TestContract(StoreContract):
    """One agent."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, consul: ConsulServer) -> str:
        return consul.url
