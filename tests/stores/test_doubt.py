"""An ask that is delivered after its token was given back takes nothing, whatever is between client and server.

The network holds the ask, its client gives up and closes the connection, and what is sent later arrives first. As
where a kernel sends again what was lost, for a socket that is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.errors import DibsError, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.stores.doubt import MOST, Doubts
from dibs.testing.proxy import FaultProxy
from dibs.testing.proxy.faults import Match
from servers.consul import ConsulServer
from servers.etcd import EtcdServer
from servers.postgres import HOST, PostgresServer
from servers.process import until
from servers.redis import RedisServer

NAME = "overtaken"

Make = Callable[[Any, str], Any]
"""Describes one kind of lock of a client, in either colour, with a name."""

LOCKS: dict[str, Make] = {
    "lock": lambda client, name: client.lock(name, ttl=60, timeout=0.4),
    "shared": lambda client, name: client.lock(name, ttl=60, timeout=0.4, shared=True),
    "semaphore": lambda client, name: client.semaphore(name, 3, ttl=60, timeout=0.4),
}


class Way:
    """A proxy before one kind of server, and how both are addressed."""

    def __init__(self, proxy: FaultProxy, url: str, direct: str, ask: bytes, ticket: Match) -> None:
        self.proxy, self.url, self.direct = proxy, url, direct
        self.ask, self.ticket = ask, ticket
        """What is in a request for a lock, and in one for a ticket."""


def wants_a_ticket(data: bytes) -> bool:
    """Whether it is an ask of Redis that names a channel on which it is to be called."""
    return b"EVALSHA" in data and b" -\r\n" not in data


@pytest.fixture
def redis_way(redis_server: RedisServer) -> Iterator[Way]:
    with FaultProxy(redis_server.address) as proxy:
        yield Way(proxy, f"redis://127.0.0.1:{proxy.port}/0", redis_server.url, b"EVALSHA", wants_a_ticket)


@pytest.fixture
def rows_way(postgres: PostgresServer) -> Iterator[Way]:
    with FaultProxy(postgres.address) as proxy:
        yield Way(proxy, f"postgresql://tests@{HOST}:{proxy.port}/postgres", postgres.url, b"dibs_", b"dibs_queue")


@pytest.fixture
def etcd_way(etcd_server: EtcdServer) -> Iterator[Way]:
    with FaultProxy(etcd_server.address) as proxy:
        yield Way(proxy, f"etcd://127.0.0.1:{proxy.port}", etcd_server.url, b"/kv/txn", b"request_txn")


@pytest.fixture(params=["redis", "rows", "etcd"])
def way(request: pytest.FixtureRequest) -> Way:
    way: Way = request.getfixturevalue(f"{request.param}_way")
    return way


def blocking(way: Way, make: Make) -> None:
    with dibs.connect(way.url) as client:
        make(client, "warm").acquire(timeout=10).release()  # so that the server knows the script
        held = way.proxy.hold("requests", way.ask)
        with pytest.raises(StoreUnavailable):
            make(client, NAME).acquire()
    held.wait()
    held.lift()


def in_a_loop(way: Way, make: Make) -> None:
    async def main() -> None:
        async with dibs.aio.connect(way.url) as client:
            lease = await make(client, "warm").acquire(timeout=10)
            await lease.release()
            held = way.proxy.hold("requests", way.ask)
            with pytest.raises(StoreUnavailable):
                await make(client, NAME).acquire()
        held.wait()
        held.lift()

    asyncio.run(main())


@pytest.mark.parametrize("ask", [blocking, in_a_loop])
@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS.keys())
def test_an_ask_that_comes_after_it_was_given_back_takes_nothing(
    way: Way, make: Make, ask: Callable[[Way, Make], None]
) -> None:
    ask(way, make)
    until(lambda: way.proxy.connections == 0, "the server has answered the ask that came last")
    with dibs.connect(way.direct) as other:
        assert other.show(NAME).holder is None
        assert other.lock(NAME, ttl=5).try_acquire() is not None


@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS.keys())
def test_an_ask_for_a_place_in_line_that_comes_too_late_takes_none(way: Way, make: Make) -> None:
    with dibs.connect(way.direct) as other:
        lease = other.lock(NAME, ttl=60).acquire(timeout=10)
        with dibs.connect(way.url) as client:
            make(client, "warm").acquire(timeout=10).release()
            held = way.proxy.hold("requests", way.ticket)

            def lines_up() -> bool:
                with pytest.raises(DibsError):
                    make(client, NAME).acquire(timeout=1)
                return held.count > 0

            until(lines_up, "the ask for a ticket is on its way")
        held.lift()
        until(lambda: way.proxy.connections == 0, "the server has answered the ask that came last")
        assert other.show(NAME).waiting == ()
        lease.release()
        assert other.lock(NAME, ttl=5).try_acquire() is not None


@pytest.mark.parametrize("ask", [blocking, in_a_loop])
def test_a_session_lock_that_comes_too_late_ends_with_its_connection(
    postgres: PostgresServer, ask: Callable[[Way, Make], None]
) -> None:
    with FaultProxy(postgres.address) as proxy:
        url, direct = f"tests@{HOST}:{proxy.port}/postgres", postgres.url.partition("://")[2]
        way = Way(proxy, f"postgresql+advisory://{url}", f"postgresql+advisory://{direct}", b"dibs_", b"")
        test_an_ask_that_comes_after_it_was_given_back_takes_nothing(way, LOCKS["lock"], ask)


@pytest.mark.parametrize("ask", [blocking, in_a_loop])
def test_an_ask_of_consul_that_comes_too_late_has_an_old_stamp(
    consul: ConsulServer, ask: Callable[[Way, Make], None]
) -> None:
    with FaultProxy(consul.address) as proxy:
        way = Way(proxy, f"consul://127.0.0.1:{proxy.port}", consul.url, b"/v1/txn", b"")
        test_an_ask_that_comes_after_it_was_given_back_takes_nothing(way, LOCKS["lock"], ask)


def test_a_doubt_is_about_what_may_have_been_sent() -> None:
    doubts = Doubts()
    for number, error in enumerate([StoreUnavailable("x", "refused"), Misuse("no"), OutcomeUnknown("x", "silence")]):
        doubts.failed(str(number), error)
    doubts.failed("cancelled", asyncio.CancelledError())
    assert list(doubts) == ["2", "cancelled"]
    doubts.settled("2")
    assert list(doubts) == ["cancelled"]


def test_doubts_that_nobody_settles_are_forgotten_in_the_end() -> None:
    doubts = Doubts()
    for number in range(MOST + 1):
        doubts.failed(str(number), KeyboardInterrupt())
    assert len(doubts) == MOST
    assert "0" not in doubts
