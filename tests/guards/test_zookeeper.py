"""A write to ZooKeeper that the ensemble refuses when the lease does not hold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError

import dibs
import dibs.aio
from dibs.errors import LeaseLost, Misuse, OutcomeUnknown
from dibs.guards.zookeeper import transact, write
from dibs.testing.proxy import FaultProxy
from servers.zookeeper import HOST, ZooKeeperServer

CHROOTS = itertools.count(1)


@pytest.fixture
def url(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.url}/guards/{next(CHROOTS)}"


@pytest.fixture
def zk(zookeeper: ZooKeeperServer, url: str) -> Iterator[KazooClient]:
    """The client of whoever writes."""
    client = KazooClient(f"{HOST}:{zookeeper.port}")
    client.start()
    client.create(f"{path_of(url)}/data", b"old", makepath=True)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def data(url: str) -> str:
    return f"{path_of(url)}/data"


def path_of(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2]


def test_a_holder_writes(url: str, zk: KazooClient, data: str) -> None:
    with dibs.connect(url) as client, client.lock("a") as lease:
        write(zk, lease, data, b"new")
        assert zk.get(data)[0] == b"new"
        results = transact(zk, lease, lambda t: (t.set_data(data, b"newer"), t.create(f"{data}/child")))
        assert results[1] == f"{data}/child"


def test_whoever_lost_the_lock_does_not_write_though_it_does_not_know(url: str, zk: KazooClient, data: str) -> None:
    with dibs.connect(url) as client, dibs.connect(url) as other:
        lease = client.lock("a").acquire()
        other.evict("a", fence=lease.fence)
        assert not lease.lost
        with pytest.raises(LeaseLost, match="'a'"):
            write(zk, lease, data, b"late")
        with other.lock("a"), pytest.raises(LeaseLost):
            write(zk, lease, data, b"late")
        assert zk.get(data)[0] == b"old"


def test_what_else_is_in_the_way_is_said_as_kazoo_says_it(url: str, zk: KazooClient, data: str) -> None:
    with dibs.connect(url) as client, client.lock("a") as lease:
        with pytest.raises(BadVersionError):
            write(zk, lease, data, b"new", version=7)
        with pytest.raises(NodeExistsError):
            transact(zk, lease, lambda t: (t.set_data(data, b"new"), t.create(data)))
        assert zk.get(data)[0] == b"old"
        write(zk, lease, data, b"new", version=0)


def test_a_lease_that_was_given_back_writes_nothing(url: str, zk: KazooClient, data: str) -> None:
    with dibs.connect(url) as client:
        lease = client.lock("a").acquire()
        lease.release()
        with pytest.raises(Misuse, match="was released"):
            write(zk, lease, data, b"new")


@pytest.mark.parametrize("chroot", ["", "/guards"])
def test_the_condition_fits_into_a_client_with_a_chroot_above_the_lock(
    url: str, zookeeper: ZooKeeperServer, zk: KazooClient, data: str, chroot: str
) -> None:
    theirs = KazooClient(f"{HOST}:{zookeeper.port}{chroot}")
    theirs.start()
    with dibs.connect(url) as client, client.lock("a") as lease:
        write(theirs, lease, data.removeprefix(chroot), b"new")
    assert zk.get(data)[0] == b"new"
    theirs.stop()
    theirs.close()


def test_a_client_whose_chroot_is_elsewhere_cannot_see_the_lock(url: str, data: str) -> None:
    elsewhere, complaint = KazooClient("h1/guard"), "with the chroot /guard cannot see"
    with dibs.connect(url) as client, client.lock("a") as lease, pytest.raises(Misuse, match=complaint):
        write(elsewhere, lease, data, b"new")


def test_it_is_awaited_with_a_lease_of_async_code(url: str, zk: KazooClient, data: str) -> None:
    async def main() -> None:
        async with dibs.aio.connect(url) as client:
            lease = await client.lock("a").acquire()
            await write(zk, lease, data, b"new")
            assert await transact(zk, lease, lambda t: t.create(f"{data}/child")) == [f"{data}/child"]
            await client.evict("a", fence=lease.fence)
            with pytest.raises(LeaseLost):
                await write(zk, lease, data, b"late")

    asyncio.run(main())
    assert zk.get(data)[0] == b"new"


def test_an_answer_that_was_lost_is_unknown(url: str, zookeeper: ZooKeeperServer, zk: KazooClient, data: str) -> None:
    with FaultProxy(zookeeper.address) as proxy, dibs.connect(url) as client, client.lock("a") as lease:
        theirs = KazooClient(f"{HOST}:{proxy.port}")
        theirs.start()
        proxy.drop_reply(to=data.encode())
        with pytest.raises(OutcomeUnknown):
            write(theirs, lease, data, b"new")
        theirs.stop()
        theirs.close()
    assert zk.get(data)[0] == b"new"
