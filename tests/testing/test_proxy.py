"""Each fault of the proxy, before a server that answers every request in capitals."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dibs.testing.proxy import Direction, End, FaultProxy
from tempo import took

PATIENCE = 10.0


class Echo(socketserver.BaseRequestHandler):
    """One connection of the server; closed when its client closes."""

    server: EchoServer

    def handle(self) -> None:
        try:
            while data := self.request.recv(1 << 16):
                self.server.note(data)
                self.request.sendall(data.upper())
        except ConnectionResetError:
            self.server.note(b"<reset>")
        else:
            self.server.note(b"<end>")


class EchoServer(socketserver.ThreadingTCPServer):
    """Remembers what it got."""

    daemon_threads = True
    got = b""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        super().__init__(("127.0.0.1", 0), Echo)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server_address[1]

    def note(self, data: bytes) -> None:
        with self.changed:
            self.got += data
            self.changed.notify_all()

    def has_got(self, data: bytes) -> bool:
        """Wait until it has got *data*."""
        with self.changed:
            return self.changed.wait_for(lambda: data in self.got, PATIENCE)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator[Callable[[], socket.socket]]:
    """Opens connections that end with the test."""
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(proxy.address, timeout=PATIENCE))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def client(connect: Callable[[], socket.socket]) -> socket.socket:
    return connect()


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(1 << 16)


def nothing_came(client: socket.socket) -> bool:
    """Whether no byte, and no end, has come so far."""
    client.setblocking(False)
    try:
        return not client.recv(1) and False
    except BlockingIOError:
        return True
    finally:
        client.settimeout(PATIENCE)


def test_bytes_pass_both_ways(client: socket.socket, server: EchoServer) -> None:
    """Without a fault it is as if the proxy were not there."""
    assert ask(client, b"hello") == b"HELLO"
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    assert server.has_got(b"hello<end>")


def test_much_passes(client: socket.socket) -> None:
    """A long stream comes out whole and in order."""
    sent = bytes(range(65, 91)) * 100_000
    sender = threading.Thread(target=client.sendall, args=(sent,))
    sender.start()
    got = bytearray()
    while len(got) < len(sent):
        got += client.recv(1 << 20)
    sender.join()
    assert got == sent


def test_unix_socket_server(tmp_path: Path) -> None:
    """The server may be behind a path."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        with FaultProxy(str(tmp_path / "socket")) as proxy, socket.create_connection(proxy.address, PATIENCE) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"hello")
                assert server.recv(5) == b"hello"


def test_drop_reply_then_close(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """The server has done it, and the client sees only the end of the connection."""
    fault = proxy.drop_reply(to=b"grant")
    assert ask(client, b"grant") == b""
    assert server.has_got(b"grant")
    assert fault.count == 1


def test_drop_reply_and_keep(client: socket.socket, proxy: FaultProxy) -> None:
    """The next request on the same connection is answered as if nothing had been lost."""
    fault = proxy.drop_reply(to=b"grant", end=None)
    client.sendall(b"grant")
    fault.wait()
    assert ask(client, b"renew") == b"RENEW"
    assert ask(client, b"grant") == b"GRANT"
    assert fault.count == 1


def test_drop_nth_reply(connect: Callable[[], socket.socket], proxy: FaultProxy) -> None:
    """Requests are counted over all connections, and only those that match."""
    proxy.drop_reply(to=lambda request: request.startswith(b"grant"), nth=3)
    first, second = connect(), connect()
    assert ask(first, b"grant 1") == b"GRANT 1"
    assert ask(first, b"regrant") == b"REGRANT"
    assert ask(second, b"grant 2") == b"GRANT 2"
    assert ask(second, b"grant 3") == b""
    assert ask(first, b"grant 4") == b"GRANT 4"


def test_drop_replies_until_lifted(client: socket.socket, proxy: FaultProxy) -> None:
    """As many as it is told, here all."""
    with proxy.drop_reply(times=None, end=None) as fault:
        for number in 1, 2, 3:
            client.sendall(b"grant")
            fault.wait(number)
    assert ask(client, b"renew") == b"RENEW"


def test_drop_request(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """A request can be lost too; then the server has done nothing."""
    proxy.drop("requests", b"grant", end="rst")
    with pytest.raises(ConnectionResetError):
        ask(client, b"grant")
    assert server.has_got(b"<reset>")
    assert b"grant" not in server.got


def test_drop_pushed_message(client: socket.socket, proxy: FaultProxy) -> None:
    """What the server says is chosen by its own bytes, whatever was asked."""
    fault = proxy.drop("replies", b"HINT", end=None)
    client.sendall(b"hint")
    fault.wait()
    assert ask(client, b"hint again") == b"HINT AGAIN"


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_delay(client: socket.socket, proxy: FaultProxy, direction: Direction) -> None:
    """Each direction can be slow, until it is lifted."""
    with proxy.delay(requests=0.1) if direction == "requests" else proxy.delay(replies=0.1) as fault:
        began = time.monotonic()
        assert ask(client, b"hello") == b"HELLO"
        assert time.monotonic() - began >= 0.1
        assert fault.count == 1
    assert ask(client, b"hello") == b"HELLO"
    assert fault.count == 1


def test_a_delay_is_no_bottleneck(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """What is sent while other bytes are on the way is late by one delay, not by two."""
    with took(0.8):
        fault = proxy.delay(requests=0.4)
        for number in range(1, 9):
            client.sendall(b"%d" % number)
            fault.wait(number)
        assert server.has_got(b"12345678")


def test_black_hole_of_requests(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """The connection is accepted and nothing arrives; after the healing it does, late."""
    with proxy.black_hole("requests") as hole:
        client.sendall(b"grant")
        hole.wait()
        assert server.got == b""
        assert nothing_came(client)
    assert client.recv(5) == b"GRANT"


def test_black_hole_of_replies(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """The server has done it, and its answer is still on the way when the client has given up."""
    hole = proxy.black_hole("replies")
    client.sendall(b"grant")
    hole.wait()
    assert server.got == b"grant"
    client.close()
    assert server.has_got(b"<end>")


def test_black_hole_for_new_connections(connect: Callable[[], socket.socket], proxy: FaultProxy) -> None:
    """Who connects during the fault is accepted, and never answered."""
    with proxy.black_hole("replies") as hole:
        late = connect()
        late.sendall(b"hello")
        hole.wait()
        assert nothing_came(late)
    assert late.recv(5) == b"HELLO"


def test_hold(
    client: socket.socket, connect: Callable[[], socket.socket], proxy: FaultProxy, server: EchoServer
) -> None:
    """One request is stuck; others overtake it, and it arrives although its connection was closed meanwhile."""
    held = proxy.hold("requests", b"grant")
    client.sendall(b"grant")
    held.wait()
    client.close()
    assert ask(connect(), b"release") == b"RELEASE"
    held.lift()
    assert server.has_got(b"releasegrant")


def test_cut_by_fin(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """Both sides see an orderly end; who comes back is served."""
    ask(client, b"hello")
    assert proxy.cut() == 1
    assert client.recv(1) == b""
    assert server.has_got(b"<end>")
    with socket.create_connection(proxy.address, PATIENCE) as again:
        assert ask(again, b"hello") == b"HELLO"


def test_cut_by_reset(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """Both sides see a reset."""
    ask(client, b"hello")
    proxy.cut("rst")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert server.has_got(b"<reset>")


def test_cut_loses_what_was_held(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """A request that hangs in a black hole never arrives once its connection is cut."""
    hole = proxy.black_hole("requests")
    client.sendall(b"grant")
    hole.wait()
    proxy.cut()
    hole.lift()
    assert server.has_got(b"<end>")
    assert b"grant" not in server.got


def test_refuse(client: socket.socket, proxy: FaultProxy) -> None:
    """New connections are refused as by a dead host, and on the same port accepted again; the open one stays."""
    ask(client, b"hello")
    with proxy.refuse():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(proxy.address, PATIENCE)
        assert ask(client, b"hello") == b"HELLO"
    with socket.create_connection(proxy.address, PATIENCE) as later:
        assert ask(later, b"hello") == b"HELLO"
    assert proxy.accepted == 2


def test_split(client: socket.socket, proxy: FaultProxy) -> None:
    """The first bytes arrive, the rest when the fault is lifted."""
    fault = proxy.split("replies", 2)
    assert ask(client, b"hello") == b"HE"
    assert nothing_came(client)
    fault.lift()
    assert client.recv(5) == b"LLO"


@pytest.mark.parametrize("end", ["fin", "rst"])
def test_split_then_end(client: socket.socket, proxy: FaultProxy, server: EchoServer, end: End) -> None:
    """The server gets a part of a request, and then the end."""
    proxy.split("requests", 3, b"grant", end=end)
    client.sendall(b"grant")
    assert server.has_got(b"<end>" if end == "fin" else b"<reset>")
    assert b"gran" not in server.got


def test_heal(client: socket.socket, proxy: FaultProxy) -> None:
    """Everything that is wrong can be lifted at once."""
    proxy.black_hole("requests"), proxy.black_hole("replies"), proxy.refuse()
    client.sendall(b"hello")
    proxy.heal()
    assert client.recv(5) == b"HELLO"


def test_the_server_is_down(proxy: FaultProxy, server: EchoServer) -> None:
    """A server that does not listen is a connection that is reset."""
    server.server_close()
    with pytest.raises(ConnectionResetError), socket.create_connection(proxy.address, PATIENCE) as client:
        client.recv(1)


def test_nothing_happened() -> None:
    """Waiting for a fault that does not happen says so, and which one."""
    with FaultProxy(("127.0.0.1", 1)) as proxy, pytest.raises(TimeoutError, match="DropReply: happened 0 times"):
        proxy.drop_reply().wait(timeout=0.01)


def test_an_error_in_a_match_is_raised(server: EchoServer) -> None:
    """A test's own predicate that fails does not fail in silence."""
    with pytest.raises(ExceptionGroup) as caught, FaultProxy(server.address) as proxy:
        proxy.drop("requests", lambda data: data.index(b"absent") > 0)
        with socket.create_connection(proxy.address, PATIENCE) as client:
            assert ask(client, b"hello") == b""
    assert caught.group_contains(ValueError)


def test_in_async_code(proxy: FaultProxy) -> None:
    """A test that is a coroutine uses the same proxy in the same way."""

    async def main() -> None:
        reader, writer = await asyncio.open_connection(*proxy.address)
        fault = proxy.drop_reply(to=b"grant", end=None)
        writer.write(b"grant")
        await asyncio.to_thread(fault.wait)
        writer.write(b"renew")
        assert await reader.readexactly(5) == b"RENEW"
        writer.close()
        await writer.wait_closed()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # the child runs nothing of ours
def test_a_forked_child_keeps_no_connection(client: socket.socket, proxy: FaultProxy, server: EchoServer) -> None:
    """A connection ends when the proxy ends it, although a child was forked meanwhile."""
    ask(client, b"hello")
    fork = multiprocessing.get_context("fork")
    there, stop = fork.Event(), fork.Event()

    def live() -> None:
        there.set()
        stop.wait()

    child = fork.Process(target=live)
    child.start()
    try:
        assert there.wait(PATIENCE)  # until it has run it has what it was born with
        proxy.cut("rst")
        assert server.has_got(b"<reset>")
        with proxy.refuse(), pytest.raises(ConnectionRefusedError):
            socket.create_connection(proxy.address, PATIENCE)
    finally:
        stop.set()
        child.join()


def test_nothing_is_left(server: EchoServer) -> None:
    """Its thread and its connections end with the block."""
    before = threading.active_count()
    with FaultProxy(server.address) as proxy, socket.create_connection(proxy.address, PATIENCE) as client:
        assert ask(client, b"hello") == b"HELLO"
        assert proxy.connections == 1
    assert proxy.connections == 0
    assert server.has_got(b"<end>")
    assert not [thread for thread in threading.enumerate() if thread.name == "fault proxy"]
    assert threading.active_count() <= before + 1  # the server's own for that connection
