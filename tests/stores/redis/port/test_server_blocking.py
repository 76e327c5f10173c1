"""Threads on one server: connections are shared without a queue, never after a fork, and never with a reply to come."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

import dibs
from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import run
from dibs.runtime.clock import boot_time
from dibs.stores.redis.port.command import command
from dibs.stores.redis.port.dial import BlockingDialer
from dibs.stores.redis.port.server_blocking import MOST_IDLE, BlockingServer
from dibs.stores.redis.port.source import RedisAddress, from_url
from dibs.testing.proxy import FaultProxy
from servers.node import Node
from servers.process import until
from servers.redis import RedisServer


@pytest.fixture
def server(redis_server: RedisServer) -> BlockingServer:
    return server_at(redis_server.port)


def server_at(port: int) -> BlockingServer:
    source, _ = from_url("redis://localhost", blocking=True)
    return BlockingServer(RedisAddress("127.0.0.1", port), BlockingDialer(source.login), boot_time)


def connections(server: RedisServer) -> int:
    return len(server.command("CLIENT", "LIST").splitlines()) - 1  # the one that asks


def test_one_caller_after_the_other_uses_one_connection(server: BlockingServer, redis_server: RedisServer) -> None:
    for number in range(20):
        assert run(server.call(command("ECHO", number), 1.0)) == b"%d" % number
    assert connections(redis_server) == 1
    run(server.close())


def test_threads_get_their_own_replies(server: BlockingServer, redis_server: RedisServer) -> None:
    wrong = list[bytes]()

    def ask(thread: int) -> None:
        for number in range(200):
            text = b"%d-%d" % (thread, number)
            if run(server.call(command("ECHO", text), 5.0)) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert connections(redis_server) <= 8
    run(server.close())


def test_a_crowd_leaves_a_bounded_number_of_connections(server: BlockingServer, redis_server: RedisServer) -> None:
    crowd = MOST_IDLE + 10
    together = threading.Barrier(crowd)

    def hold() -> None:
        wire = server.connect(boot_time() + 5)
        together.wait()
        server._give(wire, boot_time())

    threads = [threading.Thread(target=hold) for _ in range(crowd)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server._idle) == MOST_IDLE
    run(server.close())
    assert server._idle == []


def test_a_connection_with_a_reply_to_come_is_not_used_again(
    redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy]
) -> None:
    proxy = fault_proxy(redis_server)
    server = server_at(proxy.port)
    run(server.call(command("ECHO", "first"), 1.0))
    with proxy.delay(replies=0.2), pytest.raises(OutcomeUnknown, match="no answer within"):
        run(server.call(command("ECHO", "late"), 0.05))
    assert server._idle == []
    assert run(server.call(command("ECHO", "next"), 1.0)) == b"next"
    run(server.close())


@pytest.mark.parametrize("within", [0.03, 0.3, 1.5])
def test_a_request_without_an_answer_ends_in_time(
    redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy], within: float
) -> None:
    """The kernel's own timers are an eighth late: a second and a half would be too late by more than a tenth."""
    proxy = fault_proxy(redis_server)
    server = server_at(proxy.port)
    run(server.call(command("PING"), 1.0))
    took = list[float]()
    with proxy.black_hole("replies"):
        for _ in range(3):
            began = boot_time()
            with pytest.raises((OutcomeUnknown, StoreUnavailable)):
                run(server.call(command("PING"), within))
            took.append(boot_time() - began)
    assert within - 0.001 <= min(took) < within + 0.05
    run(server.close())


def test_an_interrupt_while_a_reply_is_to_come_closes_the_connection(
    redis_server: RedisServer, fault_proxy: Callable[[Node], FaultProxy]
) -> None:
    proxy = fault_proxy(redis_server)
    server = server_at(proxy.port)
    run(server.call(command("ECHO", "first"), 1.0))

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with proxy.black_hole("replies"), pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            run(server.call(command("ECHO", "late"), 5.0))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert server._idle == []
    assert run(server.call(command("ECHO", "next"), 1.0)) == b"next"
    run(server.close())


def test_a_reply_of_any_size_is_read_whole(server: BlockingServer) -> None:
    for size in (0, 1, 16_383, 16_384, 1_000_000):
        assert run(server.call(command("ECHO", b"x" * size), 5.0)) == b"x" * size
    run(server.close())


def test_a_forked_child_uses_connections_of_its_own(redis_server: RedisServer) -> None:
    with dibs.connect(redis_server.url) as client:
        lease = client.lock("a").acquire(timeout=0)
        waiting = threading.Thread(target=lambda: client.lock("a").acquire(timeout=5).release())
        waiting.start()
        while not client.show("a").waiting:
            pass
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                client.lock("b").acquire(timeout=1).release()
                taken = client.lock("a").try_acquire() is None
                with pytest.raises(dibs.NotAcquired):
                    client.lock("a").acquire(timeout=0.3)
                code = 0 if taken else 2
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        lease.renew()
        lease.release()
        waiting.join(5)
        assert not waiting.is_alive()
        assert client.show("a").holder is None


def test_closing_a_client_leaves_neither_connection_nor_thread(redis_server: RedisServer) -> None:
    before = threading.active_count()
    with dibs.connect(redis_server.url) as client, dibs.connect(redis_server.url) as other:
        with client.lock("a"), pytest.raises(dibs.NotAcquired):
            other.lock("a").acquire(timeout=0.3)
        assert connections(redis_server) == 3  # one that asks for each, and one that listens
    until(lambda: connections(redis_server) == 0, "the server has seen the ends")
    assert threading.active_count() == before
