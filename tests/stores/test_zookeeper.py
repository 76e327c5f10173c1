"""The ZooKeeper store on a real server: the contract, nodes that are found again, and what ends a session."""

from __future__ import annotations

import itertools

import pytest

from dibs.testing.contract import StoreContract
from servers.zookeeper import ZooKeeperServer

CHROOTS = itertools.count(1)


class TestContract(StoreContract):
    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, zookeeper: ZooKeeperServer) -> str:
        return f"{zookeeper.url}/contract/{next(CHROOTS)}"
