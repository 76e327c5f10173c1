"""The etcd store on real servers: the contract, and what etcd and its clients get wrong."""

from __future__ import annotations

import pytest

from dibs.testing.contract import StoreContract
from servers.etcd import EtcdServer


class TestContract(StoreContract):
    """One server."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, etcd_server: EtcdServer) -> str:
        return etcd_server.url
