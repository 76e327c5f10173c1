"""The etcd store on a cluster of three: leaders die, members are cut off, and a lock is one lock all the while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import dibs
from dibs.errors import LossReason, StoreUnavailable
from dibs.testing.contract.fences import Fences
from dibs.testing.contract.handover import HandOver
from dibs.testing.contract.suite import Fixtures
from dibs.testing.proxy import FaultProxy
from servers.etcd import EtcdCluster, EtcdServer
from servers.process import until

TTL = 3.0


class TestContract(Fences, HandOver, Fixtures):
    """What does not wait for the end of a ttl."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, etcd_cluster: EtcdCluster) -> str:
        return etcd_cluster.url


@pytest.fixture
def proxies(etcd_cluster: EtcdCluster) -> Iterator[list[FaultProxy]]:
    """One before each member."""
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(member.address)) for member in etcd_cluster.members]


def urls(cluster: EtcdCluster, first: EtcdServer) -> str:
    """All members, *first* first."""
    return cluster.url_by([first.port, *(member.port for member in cluster.members if member is not first)])


def waiting(client: dibs.Client, name: str) -> Callable[[], bool]:
    return lambda: len(client.show(name).waiting) == 1


@pytest.mark.parametrize("slots", [0, 1], ids=["a lock", "a slot"])
def test_a_lock_and_its_line_outlive_the_leader(etcd_cluster: EtcdCluster, slots: int) -> None:
    def lock(client: dibs.Client) -> dibs.Lock:
        return client.semaphore("a", slots, ttl=TTL) if slots else client.lock("a", ttl=TTL)

    leader = etcd_cluster.leader
    fences: list[int] = []
    with dibs.connect(urls(etcd_cluster, leader)) as client, dibs.connect(urls(etcd_cluster, leader)) as theirs:
        lease = lock(client).acquire(timeout=5)

        def wait() -> None:
            next_one = lock(theirs).acquire(timeout=30)
            fences.append(next_one.fence)
            next_one.release()

        waiter = threading.Thread(target=wait)
        waiter.start()
        until(waiting(client, "a"), "it waits")
        leader.kill9()
        end = deadline(lease)
        until(lambda: lease.lost.is_set() or deadline(lease) > end + TTL / 2, "it was renewed by another leader")
        assert not lease.lost
        assert fences == []
        lease.release()
        waiter.join(30)
        assert fences[0] > lease.fence
    assert etcd_cluster.leader.keys_of_locks() == []


def test_a_leader_that_stands_still_costs_no_lock(etcd_cluster: EtcdCluster) -> None:
    leader = etcd_cluster.leader
    with dibs.connect(urls(etcd_cluster, leader)) as client, client.lock("a", ttl=TTL, timeout=5) as lease:
        leader.stop()
        end = deadline(lease)
        until(lambda: lease.lost.is_set() or deadline(lease) > end + TTL / 2, "it was renewed by another leader")
        leader.cont()
        lease.check()
        lease.renew()


def test_a_member_that_is_cut_off_is_left_for_another(etcd_cluster: EtcdCluster, proxies: list[FaultProxy]) -> None:
    with (
        dibs.connect(etcd_cluster.url_by([proxy.port for proxy in proxies])) as client,
        client.lock("a", ttl=TTL, timeout=5) as lease,
        proxies[0].black_hole("replies"),
    ):
        end = deadline(lease)
        until(lambda: lease.lost.is_set() or deadline(lease) > end + TTL / 2, "it was renewed by another member")
        lease.check()
        assert client.lock("b", ttl=TTL).try_acquire() is not None


def test_a_member_that_is_dead_from_the_start_is_left_for_another(etcd_cluster: EtcdCluster) -> None:
    dead = next(member for member in etcd_cluster.members if member is not etcd_cluster.leader)
    dead.kill9()
    with dibs.connect(urls(etcd_cluster, dead)) as client, client.lock("a", ttl=TTL, timeout=5) as lease:
        lease.renew()


def test_a_member_without_the_others_grants_nothing_and_the_holder_is_told_in_time(
    etcd_cluster: EtcdCluster,
) -> None:
    alone, *others = etcd_cluster.members
    with dibs.connect(f"etcd://127.0.0.1:{alone.port}") as client:
        lease = client.lock("a", ttl=1).acquire(timeout=5)
        for other in others:
            other.stop()
        try:
            with pytest.raises(StoreUnavailable):
                client.lock("b", ttl=1).acquire(timeout=1)
            assert lease.lost.wait(5)
            assert lease.lost_reason is LossReason.EXPIRED
        finally:
            for other in others:
                other.cont()
        until(lambda: serves(alone), "the majority is back")
        with dibs.connect(etcd_cluster.url) as theirs:
            assert theirs.lock("a", ttl=TTL).acquire(timeout=10).fence > lease.fence


def deadline(lease: dibs.Lease) -> float:
    """When it ends unless it is renewed."""
    return lease._core.lost._deadline


def serves(member: EtcdServer) -> bool:
    """Whether it is asked in vain no more."""
    member.wait()
    return True
