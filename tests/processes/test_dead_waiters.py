"""A waiter that ends, between the holder and another waiter: how long the other is kept waiting for its sake."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import dibs
from servers.consul import ConsulServer
from servers.etcd import EtcdServer
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from servers.zookeeper import HOST, ZooKeeperServer

from .stage import Actor, until

ATTEMPTS = 10
"""How often the bound is tried on a machine that may be busy."""


class DeadWaiters:
    """Subclass it for a store, with its `url`."""

    ttl = 30.0

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    def test_one_that_is_killed_holds_up_the_next_no_longer_than_the_store_declares(self, url: str) -> None:
        with dibs.connect(url) as ours, dibs.connect(url) as theirs:
            bound = ours.guarantees.waiter_crash.seconds
            took = [self._hand_over(url, ours, theirs, "first")]
            while took[-1] > bound and len(took) < ATTEMPTS:
                took.append(self._hand_over(url, ours, theirs, f"again-{len(took)}"))
            assert took[-1] <= bound, took

    def test_one_whose_program_ends_leaves_the_line(self, url: str) -> None:
        with dibs.connect(url) as client, client.lock("job"):
            waiter = Actor("stander", url, "job", self.ttl)
            until(lambda: len(client.show("job").waiting) == 1, "it waits")
            waiter.end()
            assert client.show("job").waiting == ()

    def has_settled(self, name: str) -> bool:
        """Whether the first waiter is where it stays."""
        return True

    def _hand_over(self, url: str, ours: dibs.Client, theirs: dibs.Client, name: str) -> float:
        """Seconds until the waiter behind a dead one has what was let go."""
        lease = ours.lock(name, ttl=30).acquire()
        dead = Actor("stander", url, name, self.ttl)
        until(lambda: len(ours.show(name).waiting) == 1 and self.has_settled(name), "the first waits")
        served: list[tuple[float, dibs.Lease]] = []
        waits = threading.Thread(target=lambda: served.append(serve(theirs, name)))
        waits.start()
        until(lambda: len(ours.show(name).waiting) == 2, "the second waits")
        dead.kill()
        let_go_at = time.monotonic()
        lease.release()
        waits.join()
        [(at, got)] = served
        got.release()
        return at - let_go_at


def serve(client: dibs.Client, name: str) -> tuple[float, dibs.Lease]:
    """Wait for it; when that was over."""
    lease = client.lock(name, ttl=30).acquire(timeout=120)
    return time.monotonic(), lease


class TestSqlite(DeadWaiters):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/dibs.db"


class TestRedis(DeadWaiters):
    @pytest.fixture
    def url(self, redis_server: RedisServer) -> str:
        return redis_server.url


class TestPostgres(DeadWaiters):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url


class TestPostgresAdvisory(DeadWaiters):
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url_of(scheme="postgresql+advisory")


class TestEtcd(DeadWaiters):
    @pytest.fixture
    def url(self, etcd_server: EtcdServer) -> str:
        return etcd_server.url


class TestConsul(DeadWaiters):
    @pytest.fixture
    def url(self, consul: ConsulServer) -> str:
        return consul.url


class TestZooKeeper(DeadWaiters):
    @pytest.fixture
    def url(self, zookeeper: ZooKeeperServer) -> str:
        return f"{zookeeper.url}/dead"

    @pytest.fixture(autouse=True)
    def line(self, zookeeper: ZooKeeperServer) -> Iterator[None]:
        """Somebody else's client, which sees where a node is."""
        self.raw = KazooClient(f"{HOST}:{zookeeper.port}")
        self.raw.start()
        yield
        self.raw.stop()
        self.raw.close()

    def has_settled(self, name: str) -> bool:
        """Whether the waiter has another session than the holder has, by the names of their nodes."""
        return len({len(entry) for entry in self.raw.get_children(f"/dead/default/{name}")}) == 2
