"""The Consul store on three servers: elections, followers that are cut off, agents that are gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

import dibs
from dibs.errors import StoreUnavailable
from dibs.testing.proxy import FaultProxy
from servers.consul import ConsulServer, ConsulTrio
from servers.process import until

TTL = 6.0
"""Seconds: an election takes two or three of them, and a lease has to outlive it."""


def test_a_lease_and_a_waiter_outlive_the_death_of_the_leader(consul_trio: ConsulTrio) -> None:
    """Renewals that fail while nobody leads are no loss; the new leader knows the lock, and later fences are higher."""
    with dibs.connect(consul_trio.url) as client, dibs.connect(consul_trio.url) as other:
        lease, got = client.lock("leader", ttl=TTL).acquire(), list[dibs.Lease]()
        waiter = threading.Thread(target=lambda: got.append(other.lock("leader", ttl=TTL).acquire(timeout=30)))
        waiter.start()
        until(lambda: len(client.show("leader").waiting) == 1, "it waits")
        with consul_trio.without(consul_trio.leader):
            assert renewed(lease)
            assert got == []
            lease.release()
            waiter.join(30)
        assert got[0].fence > lease.fence


def test_an_agent_that_is_cut_off_is_passed_over(
    consul_trio: ConsulTrio, fault_proxy: Callable[[ConsulServer], FaultProxy]
) -> None:
    """Dead from the start, or silent later: the next one of the URL answers, and no lease is lost."""
    first, second = consul_trio.followers
    proxy = fault_proxy(first)
    with closing(socket.socket()) as dead:
        dead.bind(("127.0.0.1", 0))
        rest = consul_trio.url_of([second]).removeprefix("consul://")
        url = f"consul://127.0.0.1:{dead.getsockname()[1]},127.0.0.1:{proxy.port},{rest}"
        with dibs.connect(url) as client:
            lease = client.lock("agents", ttl=TTL).acquire()
            with proxy.black_hole("replies"):
                assert renewed(lease)
                client.lock("another", ttl=TTL).acquire(timeout=5).release()
            lease.release()


def test_a_follower_that_lost_the_others_says_so(consul_trio: ConsulTrio) -> None:
    """It has no leader to ask, so nothing was done: that is not busy, and not unknown."""
    alone = consul_trio.followers[0]
    others = [server for server in consul_trio.servers if server is not alone]
    with dibs.connect(consul_trio.url_of([alone])) as client:
        client.lock("before", ttl=TTL).acquire().release()
        for server in others:
            server.stop()
        try:
            with pytest.raises(StoreUnavailable):
                client.lock("alone", ttl=TTL).acquire(timeout=1)
        finally:
            for server in others:
                server.cont()
    until(consul_trio.has_healed, "all three serve again")


def renewed(lease: dibs.Lease) -> bool:
    """Whether it is renewed once more, whatever becomes of the first tries."""
    before = time.monotonic() + lease.expires_in()
    until(lambda: time.monotonic() + lease.expires_in() > before + 0.5 or bool(lease.lost), "it is renewed", TTL + 5)
    return not lease.lost
