"""Several servers behind HTTP: the next one is asked when one is dead, and one budget bounds it all."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dibs.errors import Misuse, OutcomeUnknown, StoreUnavailable
from dibs.ports.http.client import Http
from dibs.ports.http.message import HttpAnswer, HttpRequest
from dibs.ports.http.source import Endpoint, HttpSource, Tls
from dibs.ports.http.wire_async import AsyncDial
from dibs.ports.http.wire_blocking import BlockingDial
from dibs.runtime import Runtime, run
from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.threads import ThreadRuntime
from dibs.testing.proxy import FaultProxy
from servers.ports import Port
from servers.process import until
from tempo import took

GET = HttpRequest("GET", "/echo")


class Handler(BaseHTTPRequestHandler):
    """Echoes what it is asked; counts; streams three lines under /stream, and then nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Site

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(f"{self.path} {body.decode()}".strip())
        if self.path == "/wait":
            self.server.gate.wait(10)
        if self.path == "/stream":
            self._stream()
            return
        text = json.dumps({"path": self.path, "body": body.decode(), "auth": self.headers.get("Authorization")})
        self.send_response(503 if self.path == "/ill" else 200)
        self.send_header("Content-Length", str(len(text)))
        if self.path == "/last":
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.do_GET()

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in (b'{"n": 1}\n{"n"', b": 2}\n", b'{"n": 3}\n'):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.server.gate.wait(10)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class Site(ThreadingHTTPServer):
    """A server of HTTP in this process."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.connections = 0
        self.gate = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def process_request(self, *args: Any) -> None:
        self.connections += 1
        super().process_request(*args)

    def stop(self) -> None:
        self.gate.set()
        self.shutdown()
        self.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def proxy(site: Site) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", site.server_port)) as proxy:
        yield proxy


@pytest.fixture
def dead() -> Iterator[int]:
    """A port where nobody listens."""
    port = Port()
    yield port.number
    port.give_back()


Scene = Callable[[Callable[[Runtime], Awaitable[None]]], None]


@pytest.fixture(params=["threads", "asyncio"])
def scene(request: pytest.FixtureRequest) -> Scene:
    """Runs a test in either colour."""

    def play(main: Callable[[Runtime], Awaitable[None]]) -> None:
        async def whole(runtime: Runtime) -> None:
            await main(runtime)

        if request.param == "threads":
            run(whole(ThreadRuntime()))
        else:
            asyncio.run(in_loop(whole))

    async def in_loop(whole: Callable[[Runtime], Awaitable[None]]) -> None:
        await whole(AsyncioRuntime())

    return play


def at(*ports: int, tls: Tls | None = None) -> HttpSource:
    return HttpSource("site", tuple(Endpoint("127.0.0.1", port) for port in ports), tls)


def test_one_request_after_the_other_uses_one_connection(site: Site, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(site.server_port), runtime)
        for number in range(5):
            request = HttpRequest("POST", "/echo?a=1", b"%d" % number, (("Authorization", "me"),))
            answer = await http.request(request, 5.0)
            assert (answer.status, answer.json()) == (200, {"path": "/echo?a=1", "body": str(number), "auth": "me"})
            assert answer.headers["content-length"] == str(len(answer.body))
        assert site.connections == 1
        await http.close()

    scene(main)


def test_a_process_that_stood_still_hears_what_came_meanwhile(scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        dial = BlockingDial(None, runtime.now) if isinstance(runtime, ThreadRuntime) else AsyncDial(None, runtime.now)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            wire = await dial(Endpoint(*listener.getsockname()), runtime.now() + 5)
            server, _ = listener.accept()
        with server:
            await wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", runtime.now() + 5)
            server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            await wire.hear(runtime.now() - 1)
            wire.close()

    scene(main)


def test_a_server_that_closes_the_connection_gets_another(site: Site, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(site.server_port), runtime)
        for _ in range(3):
            assert (await http.request(HttpRequest("GET", "/last"), 5.0)).status == 200
        assert site.connections == 3
        await http.close()

    scene(main)


def test_an_idle_connection_that_the_server_closed_is_not_used(site: Site, proxy: FaultProxy, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(proxy.port), runtime)
        for _ in range(3):
            await http.request(GET, 5.0)  # without `again`: if it were sent on the dead connection, it would be unknown
            proxy.cut()
            await runtime.sleep(0.02)  # a loop has to hear of it
        assert len(site.asked) == 3
        await http.close()

    scene(main)


def test_a_dead_server_is_passed_over_and_the_good_one_remembered(site: Site, dead: int, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(dead, site.server_port), runtime)
        for _ in range(2):
            assert (await http.request(GET, 5.0)).server.endswith(str(site.server_port))
        assert http._servers[0].name.endswith(str(site.server_port))
        await http.close()

    scene(main)


def test_when_nobody_listens_nothing_happened(dead: int, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        for source in (at(dead), at(dead, dead)):
            http = Http(source, runtime)
            with pytest.raises(StoreUnavailable, match="no connection") as caught:
                await http.request(GET, 5.0, again=True)
            assert not isinstance(caught.value, OutcomeUnknown)
            await http.close()

    scene(main)


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_a_server_that_accepts_and_never_answers_costs_the_budget(
    direction: Any, proxy: FaultProxy, scene: Scene
) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(proxy.port), runtime)
        await http.request(GET, 5.0)
        with proxy.black_hole(direction):
            began = runtime.now()
            with took(0.3 + 1), pytest.raises(OutcomeUnknown, match="no answer in time"):
                await http.request(GET, 0.3, again=True)
            assert runtime.now() - began > 0.29
        assert (await http.request(GET, 5.0)).status == 200
        await http.close()

    scene(main)


def test_a_server_that_hangs_leaves_time_for_the_next(site: Site, proxy: FaultProxy, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(proxy.port, site.server_port), runtime)
        with proxy.black_hole("requests"):
            assert (await http.request(GET, 1.0, again=True)).server.endswith(str(site.server_port))
            with took(1):  # it is no longer asked first
                await http.request(GET, 4.0)
        await http.close()

    scene(main)


def test_an_answer_that_was_to_be_held_back_is_waited_for(site: Site, proxy: FaultProxy, scene: Scene) -> None:
    """Although there is another server, which would have to be left some of the time else."""

    async def main(runtime: Runtime) -> None:
        http = Http(at(proxy.port, site.server_port), runtime)
        with proxy.delay(replies=0.4):
            answer = await http.request(GET._replace(held=0.55), 0.6)
        assert answer.server.endswith(str(proxy.port))
        await http.close()

    scene(main)


def test_what_may_not_be_done_twice_is_sent_once(site: Site, proxy: FaultProxy, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(proxy.port, site.server_port), runtime)
        with proxy.drop_reply(to=b"GET", end="rst"), pytest.raises(OutcomeUnknown):
            await http.request(GET, 2.0)
        assert len(site.asked) == 1
        await http.close()

    scene(main)


def test_a_reply_that_broke_off_is_asked_for_again_at_the_only_server(
    site: Site, proxy: FaultProxy, scene: Scene
) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(proxy.port), runtime)
        proxy.drop_reply(to=b"GET", end="rst")
        assert (await http.request(GET, 5.0, again=True)).status == 200
        assert len(site.asked) == 2
        await http.close()

    scene(main)


def test_a_server_that_cannot_serve_is_passed_over(site: Site, scene: Scene) -> None:
    def cannot_serve(answer: HttpAnswer) -> StoreUnavailable | None:
        return OutcomeUnknown(answer.server, "it is ill") if answer.status == 503 else None

    async def main(runtime: Runtime) -> None:
        other = Site()
        http = Http(at(site.server_port, other.server_port), runtime, cannot_serve)
        with pytest.raises(OutcomeUnknown, match=r"it is ill.*it is ill"):
            await http.request(HttpRequest("GET", "/ill"), 5.0, again=True)
        with pytest.raises(OutcomeUnknown, match="it is ill"):
            await http.request(HttpRequest("GET", "/ill"), 5.0)
        assert len(site.asked) + len(other.asked) == 3
        await http.close()
        other.stop()

    scene(main)


def test_what_follows_a_cancelled_request_with_its_ordering_key_is_carried_out_after_it(site: Site) -> None:
    async def main() -> None:
        http = Http(at(site.server_port), AsyncioRuntime())
        first = asyncio.ensure_future(http.request(HttpRequest("POST", "/wait", b"first"), 5.0, ordering_key="t"))
        while not site.asked:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        second = asyncio.ensure_future(http.request(HttpRequest("POST", "/echo", b"second"), 5.0, ordering_key="t"))
        await http.request(HttpRequest("POST", "/echo", b"other"), 5.0)
        assert site.asked == ["/wait first", "/echo other"]
        site.gate.set()
        assert (await second).json()["body"] == "second"
        assert site.asked[2] == "/echo second"
        await http.close()

    asyncio.run(main())


def test_an_ordering_key_whose_server_hangs_goes_on_elsewhere(site: Site, proxy: FaultProxy) -> None:
    async def main() -> None:
        http = Http(at(proxy.port, site.server_port), AsyncioRuntime())
        with proxy.black_hole("replies"):
            first = asyncio.ensure_future(http.request(GET, 5.0, ordering_key="t"))
            while not site.asked:
                await asyncio.sleep(0.001)
            first.cancel()
            await asyncio.wait([first])
            assert (await http.request(GET, 1.0, again=True, ordering_key="t")).status == 200
        await http.close()

    asyncio.run(main())


def test_a_stream_is_read_line_by_line(site: Site, scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        http = Http(at(site.server_port), runtime)
        with await http.stream(HttpRequest("POST", "/stream"), 5.0) as stream:
            assert [json.loads(await stream.line(5.0) or b"") for _ in range(3)] == [{"n": 1}, {"n": 2}, {"n": 3}]
            assert await stream.line(0.05) is None
            site.gate.set()
            with pytest.raises(StoreUnavailable, match="ended its answer"):
                await stream.line(5.0)
        await http.close()

    scene(main)


def test_closing_a_stream_ends_the_call_that_reads_it(site: Site) -> None:
    async def main() -> None:
        http = Http(at(site.server_port), AsyncioRuntime())
        stream = await http.stream(HttpRequest("POST", "/stream"), 5.0)
        for _ in range(3):
            await stream.line(5.0)
        reading = asyncio.ensure_future(stream.line(10.0))
        await asyncio.sleep(0)
        stream.close()
        with pytest.raises(StoreUnavailable, match="closed the connection"):
            await reading
        await http.close()

    asyncio.run(main())


def test_a_thread_that_reads_a_stream_is_told_when_it_is_closed(site: Site) -> None:
    http = Http(at(site.server_port), ThreadRuntime())
    stream = run(http.stream(HttpRequest("POST", "/stream"), 5.0))
    ended = threading.Event()

    def read() -> None:
        with pytest.raises(StoreUnavailable):
            while True:
                run(stream.line(10.0))
        ended.set()

    threading.Thread(target=read).start()
    until(lambda: not stream._lines and site.asked == ["/stream"], "it reads")
    time.sleep(0.05)
    stream.close()
    assert ended.wait(5)


def test_threads_do_not_wait_for_each_other(site: Site) -> None:
    http = Http(at(site.server_port), ThreadRuntime())
    slow = threading.Thread(target=lambda: run(http.request(HttpRequest("GET", "/wait"), 10.0)))
    slow.start()
    until(lambda: "/wait" in site.asked, "the slow one has asked")
    assert run(http.request(GET, 5.0)).status == 200
    site.gate.set()
    slow.join()
    run(http.close())


def test_a_forked_child_has_connections_of_its_own(site: Site) -> None:
    http = Http(at(site.server_port), ThreadRuntime())
    run(http.request(GET, 5.0))
    if not (pid := os.fork()):
        http.forked()
        os._exit(run(http.request(GET, 5.0)).status != 200)
    assert os.waitpid(pid, 0)[1] == 0
    assert run(http.request(GET, 5.0)).status == 200
    assert site.connections == 2
    run(http.close())


def test_what_no_server_of_http_says_is_told(scene: Scene) -> None:
    async def main(runtime: Runtime) -> None:
        with ExitStack() as stack:
            port = stack.enter_context(liar(b"+PONG\r\n\r\n"))
            http = Http(at(port), runtime)
            with pytest.raises(OutcomeUnknown, match="its answer is not HTTP"):
                await http.request(GET, 5.0)
            await http.close()

    scene(main)


class liar:  # noqa: N801 - used as a context
    """A server that answers with *text*, whatever it is asked."""

    def __init__(self, text: bytes) -> None:
        self._listener, self._text = socket.create_server(("127.0.0.1", 0)), text
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        return int(self._listener.getsockname()[1])

    def __exit__(self, *error: object) -> None:
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(self._text)


def test_a_certificate_that_is_not_there_is_misuse_before_anything_is_sent(dead: int) -> None:
    with pytest.raises(Misuse, match="/nowhere"):
        Http(at(dead, tls=Tls(ca="/nowhere")), ThreadRuntime())
