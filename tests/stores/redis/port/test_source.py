"""Where the servers are: every form of a URL, and the clients and pools that callers already have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import dibs
import dibs.aio
from dibs.errors import Misuse
from dibs.stores.redis.port.source import RedisAddress, from_url
from servers.certificates import Certificates
from servers.cluster import RedisCluster
from servers.redis import RedisServer
from servers.sentinel import SentinelTrio


@pytest.mark.parametrize(
    ("url", "kind", "addresses", "service"),
    [
        ("redis://localhost", "single", [("localhost", 6379)], ""),
        ("valkey://10.0.0.1:7000/2", "single", [("10.0.0.1", 7000)], ""),
        ("rediss://user:p%40ss@[::1]:7000", "single", [("::1", 7000)], ""),
        ("unix:///run/redis/socket?db=3", "single", [("/run/redis/socket", 0)], ""),
        ("redis+sentinel://a,b:5000,c/mymaster/4", "sentinel", [("a", 26379), ("b", 5000), ("c", 26379)], "mymaster"),
        ("redis+sentinel://a/my%2Fmaster/0", "sentinel", [("a", 26379)], "my/master"),
        ("rediss+cluster://a,b", "cluster", [("a", 6379), ("b", 6379)], ""),
    ],
)
def test_a_url_says_where_the_servers_are(url: str, kind: str, addresses: list[tuple[str, int]], service: str) -> None:
    source, _ = from_url(url, blocking=True)
    assert (source.kind, source.service) == (kind, service)
    assert source.addresses == tuple(RedisAddress(*address) for address in addresses)


def test_password_user_and_database_are_read_from_every_kind_of_url() -> None:
    for scheme, path in (("redis", "/4"), ("redis+sentinel", "/mymaster/4"), ("valkey", "/4")):
        source, _ = from_url(f"{scheme}://user:p%40s%2Fs@host{path}", blocking=True)
        options = {name: source.login.options[name] for name in ("username", "password", "db")}
        assert options == {"username": "user", "password": "p@s/s", "db": 4}


def test_options_of_ours_are_kept_apart_from_those_of_redis_py() -> None:
    source, ours = from_url("redis://host?min_replicas=2&key={name}&socket_keepalive=yes", blocking=True)
    assert ours == {"min_replicas": "2", "key": "{name}"}
    assert source.login.options == {"socket_keepalive": True}


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a,b",
        "redis+cluster://a/3",
        "redis://a,b",
        "redis://:sec/ret@host",
        "redis://host:port",
        "redis://host:99999",
        "redis://host?socket_keepalive=maybe&db=x",
    ],
)
def test_a_url_that_cannot_be_right_is_misuse_and_shows_no_password(url: str) -> None:
    with pytest.raises(Misuse) as refused:
        dibs.connect(url)
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize("blocking", [True, False], ids=["threads", "asyncio"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey"])
def test_an_option_that_nobody_knows_is_misuse_and_named(scheme: str, blocking: bool) -> None:
    with pytest.raises(Misuse, match=r"did you mean min_replicas\?"):
        from_url(f"{scheme}://host?min_replica=1", blocking=blocking)


def test_a_unix_socket_and_another_database_are_places_of_their_own(redis_server: RedisServer) -> None:
    with (
        dibs.connect(redis_server.unix_url) as here,
        dibs.connect(redis_server.url) as same,
        dibs.connect(redis_server.url[:-1] + "5") as other,
    ):
        lease = here.lock("a").acquire(timeout=0)
        assert same.lock("a").try_acquire() is None
        assert other.lock("a").acquire(timeout=0).fence != lease.fence


def test_tls_is_verified(redis_tls: RedisServer) -> None:
    with dibs.connect(redis_tls.url) as client:
        client.lock("a").acquire(timeout=0).release()
    with dibs.connect(redis_tls.url.partition("?")[0]) as client, pytest.raises(dibs.StoreUnavailable, match="certif"):
        client.lock("a").acquire(timeout=0)


def test_tls_works_in_async_code_too(redis_tls: RedisServer) -> None:
    async def main() -> None:
        async with dibs.aio.connect(redis_tls.url) as client, dibs.aio.connect(redis_tls.url) as other:
            lease = await client.lock("a").acquire(timeout=0)
            waiter = asyncio.create_task(other.lock("a").acquire())
            while not (await client.show("a")).waiting:
                await asyncio.sleep(0.005)
            await lease.release()
            await (await waiter).release()
            leases = await asyncio.gather(*(client.lock(f"{number}").acquire() for number in range(200)))
            assert len({lease.fence for lease in leases}) > 1
        async with dibs.aio.connect(redis_tls.url.partition("?")[0]) as client:
            with pytest.raises(dibs.StoreUnavailable, match="certif"):
                await client.lock("a").acquire(timeout=0)

    asyncio.run(main())


anything: Any = redis  # some of it is untyped
anything_async: Any = redis.asyncio

BLOCKING: dict[str, Callable[[RedisServer], Any]] = {
    "client": lambda server: redis.Redis(port=server.port),
    "decoding client": lambda server: redis.Redis(port=server.port, decode_responses=True, encoding="latin-1"),
    "RESP3 client": lambda server: redis.Redis(port=server.port, protocol=3, decode_responses=True),
    "client from a URL": lambda server: redis.Redis.from_url(
        server.url, client_name="billing", health_check_interval=1
    ),
    "pool": lambda server: redis.ConnectionPool(port=server.port, max_connections=1),
    "blocking pool": lambda server: anything.BlockingConnectionPool(port=server.port, max_connections=1, timeout=1),
    "unix client": lambda server: redis.Redis(unix_socket_path=str(server.socket)),
    "client with one connection": lambda server: redis.Redis(port=server.port, single_connection_client=True),
}


@pytest.mark.parametrize("kind", BLOCKING)
def test_a_client_or_pool_of_redis_py_is_enough_to_connect(redis_server: RedisServer, kind: str) -> None:
    theirs = BLOCKING[kind](redis_server)
    with dibs.connect(theirs) as client, dibs.connect(redis_server.url) as other:
        with client.lock("a", note="mine") as lease:
            assert other.lock("a").try_acquire() is None
            assert [holder.fence for holder in client.holders()] == [lease.fence]
        assert other.lock("a").try_acquire() is not None
    theirs.close()


ASYNC: dict[str, Callable[[RedisServer], Any]] = {
    "client": lambda server: redis.asyncio.Redis(port=server.port),
    "decoding client": lambda server: redis.asyncio.Redis(port=server.port, decode_responses=True),
    "RESP3 client": lambda server: redis.asyncio.Redis(port=server.port, protocol=3),
    "client from a URL": lambda server: redis.asyncio.Redis.from_url(server.url, client_name="billing"),
    "pool": lambda server: redis.asyncio.ConnectionPool(port=server.port, max_connections=1),
    "blocking pool": lambda server: redis.asyncio.BlockingConnectionPool(port=server.port, max_connections=1),
    "unix client": lambda server: redis.asyncio.Redis(unix_socket_path=str(server.socket)),
}


@pytest.mark.parametrize("kind", ASYNC)
def test_an_async_client_or_pool_of_redis_py_is_enough_to_connect(redis_server: RedisServer, kind: str) -> None:
    async def main() -> None:
        theirs = ASYNC[kind](redis_server)
        async with dibs.aio.connect(theirs) as client, dibs.aio.connect(redis_server.url) as other:
            async with client.lock("a") as lease:
                assert await other.lock("a").try_acquire() is None
                assert [holder.fence for holder in await client.holders()] == [lease.fence]
            assert await other.lock("a").try_acquire() is not None
        await theirs.aclose()

    asyncio.run(main())


def test_a_client_that_logs_in_logs_us_in(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(password="secret", users=["alice on >pw ~* &* +@all"])
    provider = redis.UsernamePasswordCredentialProvider("alice", "pw")
    for theirs in (
        redis.Redis(port=server.port, password="secret", db=2),
        redis.Redis(port=server.port, username="alice", password="pw"),
        redis.Redis(port=server.port, credential_provider=provider),
    ):
        with dibs.connect(theirs) as client:
            client.lock("a").acquire(timeout=0).release()
        theirs.close()


def test_a_client_with_tls_brings_its_tls(redis_tls: RedisServer, certificates: Certificates) -> None:
    options: dict[str, Any] = {"port": redis_tls.port, "ssl": True, "ssl_ca_certs": str(certificates.authority)}
    with redis.Redis(**options) as theirs, dibs.connect(theirs) as client:
        client.lock("a").acquire(timeout=0).release()

    async def main() -> None:
        async with redis.asyncio.Redis(**options) as theirs, dibs.aio.connect(theirs) as client:
            await (await client.lock("a").acquire(timeout=0)).release()

    asyncio.run(main())


def test_a_cluster_client_is_enough_to_connect(redis_cluster: RedisCluster) -> None:
    port = redis_cluster.nodes[0].port
    theirs = redis.RedisCluster(host="127.0.0.1", port=port)
    with dibs.connect(theirs) as client, dibs.connect(redis_cluster.url) as other:
        leases = [client.lock(name).acquire(timeout=0) for name in "abcd"]
        assert [other.lock(lease.name).try_acquire() for lease in leases] == [None] * 4
        assert [holder.fence for holder in other.holders()] == [lease.fence for lease in leases]
    theirs.close()

    async def main() -> None:
        async with (
            redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as theirs,
            dibs.aio.connect(theirs) as client,
        ):
            for name in ("a", "b", "c", "d"):
                await (await client.lock(name).acquire(timeout=0)).release()

    asyncio.run(main())


def test_a_client_behind_sentinels_is_enough_to_connect(sentinel: SentinelTrio) -> None:
    hosts = [("127.0.0.1", node.port) for node in sentinel.sentinels]
    trio = anything.sentinel.Sentinel(hosts)
    theirs = trio.master_for(sentinel.name)
    with dibs.connect(theirs) as client, dibs.connect(sentinel.url) as other, client.lock("a"):
        assert other.lock("a").try_acquire() is None
    with pytest.raises(Misuse, match="replica"):
        dibs.connect(trio.slave_for(sentinel.name))
    with pytest.raises(Misuse, match="no client or pool"):
        dibs.connect(trio)
    theirs.close()
    for each in trio.sentinels:
        each.close()

    async def main() -> None:
        trio = anything_async.sentinel.Sentinel(hosts)
        theirs = trio.master_for(sentinel.name)
        async with dibs.aio.connect(theirs) as client:
            await (await client.lock("a").acquire(timeout=0)).release()
        await theirs.aclose()
        for each in trio.sentinels:
            await each.aclose()

    asyncio.run(main())


def test_a_client_of_the_other_colour_is_misuse() -> None:
    for theirs in (redis.asyncio.Redis(), redis.asyncio.ConnectionPool()):
        with pytest.raises(Misuse, match=r"dibs\.aio"):
            dibs.connect(theirs)
    for blocking in (redis.Redis(), redis.ConnectionPool()):
        with pytest.raises(Misuse, match=r"redis\.asyncio"):
            dibs.aio.connect(blocking)


def test_an_object_that_is_no_client_is_misuse() -> None:
    for thing in (object(), 7, b"redis://localhost"):
        with pytest.raises(Misuse):
            dibs.connect(thing)
