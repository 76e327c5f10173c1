"""The real servers that tests ask for by name; what they are is in tests/servers/.

Servers that start in a moment are a test's own where tests break them. The others are shared: each test gets them
empty, running, and with the settings of a new one, whatever the test before did to them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from dibs.testing.proxy import FaultProxy
from servers.certificates import Certificates
from servers.clock import Clock
from servers.cluster import RedisCluster
from servers.consul import ConsulServer, ConsulTrio
from servers.etcd import EtcdCluster, EtcdServer
from servers.node import Node
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from servers.sentinel import SentinelTrio
from servers.zookeeper import Ensemble, ZooKeeperServer

pytest_plugins = ["selection", "tries", "busy"]


def pytest_configure() -> None:
    """Hear Ctrl-C, and let the processes of the tests hear it, also where a shell began us in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    with RedisServer("redis") as server:
        yield server


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[RedisServer]:
    with RedisServer("valkey") as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis_tls(certificates: Certificates) -> Iterator[RedisServer]:
    with RedisServer(tls=certificates) as server:
        yield server


@pytest.fixture(scope="session")
def shared_redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_ensemble() -> Iterator[Ensemble]:
    with Ensemble() as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def shared_etcd_cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of our own, and certificates for a server and a client on this machine."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def shared_redlock() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """A Redis that keeps nothing on disk."""
    shared_redis.reset()
    return shared_redis


@pytest.fixture
def valkey_server(shared_valkey: RedisServer) -> RedisServer:
    """A Valkey that keeps nothing on disk."""
    shared_valkey.reset()
    return shared_valkey


@pytest.fixture(params=["redis", "valkey"])
def redis_or_valkey(request: pytest.FixtureRequest) -> RedisServer:
    """The test runs once with each."""
    return cast("RedisServer", request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def redis_tls(shared_redis_tls: RedisServer) -> RedisServer:
    """A Redis that speaks only TLS, with a certificate of an authority of our own."""
    shared_redis_tls.reset()
    return shared_redis_tls


@pytest.fixture
def redis_cluster(shared_redis_cluster: RedisCluster) -> RedisCluster:
    """Three masters; a slot that a test moved stays where it is."""
    shared_redis_cluster.reset()
    return shared_redis_cluster


@pytest.fixture
def sentinel() -> Iterator[SentinelTrio]:
    """Three sentinels, a master and a replica; the test's own."""
    with SentinelTrio() as trio:
        yield trio


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of the test's own, with the arguments of `RedisServer`."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(RedisServer(*args, **options))


@pytest.fixture
def postgres(shared_postgres: PostgresServer) -> PostgresServer:
    """A PostgreSQL without locks; it does not write to disk what it should."""
    return shared_postgres.reset()


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Starts servers of the test's own, with the arguments of `PostgresServer`; that takes a second."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(PostgresServer(*args, **options))


@pytest.fixture(scope="session")
def shared_consul() -> Iterator[ConsulServer]:
    with ConsulServer() as server:
        yield server


@pytest.fixture(scope="session")
def shared_consul_trio() -> Iterator[ConsulTrio]:
    with ConsulTrio() as trio:
        yield trio


@pytest.fixture
def consul(shared_consul: ConsulServer) -> ConsulServer:
    """A Consul agent without locks, alone and in memory, that lets sessions be short."""
    return shared_consul.reset()


@pytest.fixture
def consul_trio(shared_consul_trio: ConsulTrio) -> ConsulTrio:
    """Three Consul servers; a test that ends one starts it again."""
    return shared_consul_trio


@pytest.fixture
def start_consul() -> Iterator[Callable[..., ConsulServer]]:
    """Starts agents of the test's own, with the arguments of `ConsulServer`."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(ConsulServer(*args, **options))


@pytest.fixture
def zookeeper(shared_zookeeper: ZooKeeperServer) -> ZooKeeperServer:
    """A ZooKeeper that runs; what tests leave there is taken away, so give each a chroot of its own."""
    return shared_zookeeper.reset()


@pytest.fixture
def ensemble(shared_ensemble: Ensemble) -> Ensemble:
    """Three ZooKeepers that run."""
    return shared_ensemble.reset()


@pytest.fixture
def etcd_server(shared_etcd: EtcdServer) -> EtcdServer:
    """An etcd without keys or leases."""
    shared_etcd.reset()
    return shared_etcd


@pytest.fixture
def etcd_cluster(shared_etcd_cluster: EtcdCluster) -> EtcdCluster:
    """Three members that run, without keys or leases."""
    shared_etcd_cluster.reset()
    return shared_etcd_cluster


@pytest.fixture
def redlock(shared_redlock: list[RedisServer]) -> str:
    """The URL of a Redlock of three masters."""
    for server in shared_redlock:
        server.reset()
    return "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in shared_redlock) + "/0"


@pytest.fixture(
    params=["sqlite", "memory", "redis", "redlock", "postgresql", "advisory", "zookeeper", "etcd", "consul"]
)
def every_store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The test runs once with each kind of store, and gets its URL."""
    get = request.getfixturevalue
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/dibs.db",
        "memory": lambda: "memory:",
        "redis": lambda: cast(str, get("redis_server").url),
        "redlock": lambda: cast(str, get("redlock")),
        "postgresql": lambda: cast(str, get("postgres").url),
        "advisory": lambda: cast(str, get("postgres").url_of(scheme="postgresql+advisory")),
        "zookeeper": lambda: f"{get('zookeeper').url}/{tmp_path.name}",
        "etcd": lambda: cast(str, get("etcd_server").url),
        "consul": lambda: cast(str, get("consul").url),
    }
    return urls[request.param]()


@pytest.fixture
def clock() -> Iterator[Clock]:
    """A wall clock to give to a server: ``start_redis(clock=clock)``, then ``clock.shift(60)``."""
    with Clock() as clock:
        yield clock


@pytest.fixture
def fault_proxy() -> Iterator[
    Callable[[Node | PostgresServer | ZooKeeperServer | EtcdServer | ConsulServer], FaultProxy]
]:
    """Puts a proxy before a server: ``fault_proxy(redis_server)``."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(FaultProxy(server.address))
