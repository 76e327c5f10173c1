"""A node of a real Redlock that forgets, or is slow, at each moment of a lease; nodes of other kinds; late answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

import dibs
import dibs.aio
from dibs.runtime.clock import boot_time
from dibs.stores.redis.port.command import Script
from dibs.stores.redlock import scripts
from dibs.stores.redlock.port.nodes import NodeAnswer, NodeCall, PlainCommand
from dibs.stores.redlock.port.nodes_blocking import BlockingNodes
from dibs.stores.redlock.port.round_blocking import ChannelSet
from dibs.stores.redlock.store import RedlockStore
from dibs.testing.proxy import FaultProxy
from servers.certificates import Certificates
from servers.process import until
from servers.redis import RedisServer
from tempo import took

KEY = "dibs:{default:x}"

FUTURE = 8_000_000_000_000_000


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def three(servers: list[RedisServer]) -> list[RedisServer]:
    for server in servers:
        server.reset()
    return servers


def url(*ports: int, options: str = "") -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/0" + options


def met(*ports: int, options: str = "") -> dibs.Client:
    """A client whose nodes know that they belong together."""
    client = dibs.connect(url(*ports, options=options))
    with client.lock("x"):
        return client


def nodes_of(client: dibs.Client) -> BlockingNodes:
    return cast("BlockingNodes", cast("RedlockStore", client._core._store)._nodes)


def none_has_it(servers: list[RedisServer]) -> bool:
    return not any(server.command("EXISTS", KEY) for server in servers)


def owed(channel_set: ChannelSet) -> bool:
    """Read what has come, and tell whether there is more to come."""
    channel_set.listen(0.0)
    return any(channel.owed for channel in channel_set.channels)


# --- a node that restarts empty ----------------------------------------------------------------------------------


class Interrupted:
    """A round in which something happens once, as soon as a script was sent."""

    def __init__(self, real: Any, script: Script, happens: Callable[[], None]) -> None:
        self._real, self._script, self._happens = real, script, happens
        self.next, self.end = real.next, real.end

    def send(self, node: int, call: NodeCall | PlainCommand, **how: Any) -> None:
        self._real.send(node, call, **how)
        self._sent(call)

    def send_all(self, call: NodeCall, **how: Any) -> None:
        self._real.send_all(call, **how)
        self._sent(call)

    def _sent(self, call: NodeCall | PlainCommand) -> None:
        if isinstance(call, NodeCall) and call.script is self._script:
            self._happens()


MOMENTS = {
    "during the grant": scripts.GRANT,
    "between grant and confirm": scripts.CONFIRM,
    "at the renewal": scripts.RENEW,
    "at the release": scripts.RELEASE,
}


@pytest.mark.parametrize("script", MOMENTS.values(), ids=MOMENTS.keys())
def test_a_node_that_restarts_empty_at_any_moment_neither_votes_nor_lets_a_fence_fall(
    three: list[RedisServer], script: Script
) -> None:
    ports = [server.port for server in three]
    client = met(*ports, options="?node_timeout=2.5")  # the restart is a part of the round, and may take a while
    with client, dibs.connect(url(*ports)) as other:
        before = client.show("x").fence
        for server in three[1:]:
            server.command("SET", f"{KEY}:fence", FUTURE)  # the first has to rise to it, if both were not quicker
        forgotten: list[int] = []

        def forget() -> None:
            if not forgotten:
                forgotten.append(1)
                three[0].restart(keep_data=False)

        nodes = nodes_of(client)
        real = nodes.round
        nodes.round = lambda token="": Interrupted(real(token), script, forget)  # type: ignore[method-assign,assignment,return-value]
        while not forgotten:
            with client.lock("x", ttl=10) as lease:
                assert other.lock("x").try_acquire() is None
                lease.renew()
                assert other.lock("x").try_acquire() is None
        nodes.round = real  # type: ignore[method-assign]
        assert lease.fence > max(before, FUTURE)
        with other.lock("x", timeout=5) as later:
            assert later.fence > lease.fence
            assert three[0].command("EXISTS", KEY) == 0
            assert three[0].command("HGET", "dibs:redlock:node", "set") is None


# --- a node that is slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.05, 0.3], ids=["slow", "slower than it is waited for"])
@pytest.mark.parametrize("way", ["requests", "replies"])
def test_a_slow_node_costs_nothing_and_keeps_nothing(
    three: list[RedisServer], fault_proxy: Callable[[RedisServer], FaultProxy], seconds: float, way: str
) -> None:
    proxy = fault_proxy(three[0])
    with met(proxy.port, three[1].port, three[2].port) as client:
        proxy.delay(**{way: seconds})
        took = []
        for _ in range(10):
            began = boot_time()
            with client.lock("x") as lease:
                lease.renew()
            took.append(boot_time() - began)
        assert sorted(took)[5] < 3 * seconds, "waiting for it in each of three steps would take longer, in the median"
        proxy.heal()
        until(lambda: none_has_it(three), "what came late was given back", 5)


# --- a grant that comes late -------------------------------------------------------------------------------------


def test_a_grant_that_arrives_after_the_release_on_another_connection_does_not_stay(three: list[RedisServer]) -> None:
    """The network holds what was sent on one connection, and a thread that needs it gives the lease back elsewhere."""
    with met(*(server.port for server in three)) as client:
        nodes = nodes_of(client)
        [channel_set] = nodes._idle
        channel, held = channel_set.channels[0], list[bytes]()
        deliver, channel.send = channel.send, lambda data: held.append(data) or len(data)  # type: ignore[func-returns-value]
        lease = client.lock("x").acquire()
        others = nodes.round()  # another thread has the connections now
        assert others._channel_set is channel_set
        lease.release()
        assert three[0].command("EXISTS", KEY) == 0
        others.end()
        channel.send = deliver
        deliver(b"".join(held))
        until(lambda: not owed(channel_set), "it has done all")
        assert int(three[0].command("GET", f"{KEY}:fence")) >= lease.fence, "the grant did arrive"
        assert none_has_it(three)


def test_answers_to_a_round_that_has_ended_are_not_kept(three: list[RedisServer]) -> None:
    with met(*(server.port for server in three)) as client:
        nodes = nodes_of(client)
        asking = nodes.round()
        asking.send_all(NodeCall(scripts.SHOW, (b"a", b"b", b"c", b"d", b"e", b"f")))
        asking.end()
        channel_set = asking._channel_set
        until(lambda: not owed(channel_set), "all have answered")
        assert not asking.answers
        asking.hear(NodeAnswer(0, PlainCommand("PING"), b"late"))
        assert not asking.answers


# --- nodes of other kinds ----------------------------------------------------------------------------------------


def test_nodes_may_be_valkey_servers(three: list[RedisServer], valkey_server: RedisServer) -> None:
    with met(three[0].port, three[1].port, valkey_server.port) as client:
        with client.lock("x") as lease:
            until(lambda: valkey_server.command("EXISTS", KEY) == 1, "it has voted")
            lease.renew()
        until(lambda: none_has_it([*three, valkey_server]), "all have heard of the release")
        three[0].kill9()
        with client.lock("x") as later:
            assert later.fence > lease.fence


@pytest.fixture
def over_tls(certificates: Certificates) -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer(tls=certificates)) for _ in range(3)]


def test_nodes_over_tls_are_as_fast_with_one_that_hangs(over_tls: list[RedisServer]) -> None:
    hosts, query = ",".join(f"localhost:{node.port}" for node in over_tls), over_tls[0].url.partition("?")[2]
    secure = f"rediss+redlock://{hosts}/0?{query}"

    async def in_async_code() -> int:
        async with dibs.aio.connect(secure) as client, client.lock("x") as lease:
            await lease.renew()
            return lease.fence

    def is_granted(client: dibs.Client) -> bool:
        try:
            with client.lock("x") as lease:
                lease.renew()
                return True
        except dibs.StoreUnavailable:  # a busy machine takes long for three handshakes
            return False

    with dibs.connect(secure) as client:
        until(lambda: is_granted(client), "they have met")
        with client.lock("x") as lease:
            lease.renew()
        over_tls[0].stop()
        with took(5.0):  # a second for each would be waiting for it
            fences = [lease.fence]
            for _ in range(10):
                with client.lock("x") as lease:
                    fences.append(lease.fence)
        over_tls[0].cont()
        until(lambda: none_has_it(over_tls), "nothing is left", 5)
    fences.append(asyncio.run(in_async_code()))
    assert fences == sorted(set(fences))


def test_a_certificate_that_is_not_trusted_is_told_apart(over_tls: list[RedisServer]) -> None:
    hosts = ",".join(f"localhost:{node.port}" for node in over_tls)
    with dibs.connect(f"rediss+redlock://{hosts}/0") as client, pytest.raises(dibs.StoreUnavailable, match="certif"):
        client.lock("x").try_acquire()
