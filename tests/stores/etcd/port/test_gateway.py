"""Calls of etcd's gateway: what its errors mean, errors inside streams, and when a client logs in."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.ports.http.source import Endpoint, HttpSource
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.etcd.port.gateway import Code, Etcd, EtcdRefused

Answers = Callable[[str, dict[str, Any], str], tuple[int, list[str]]]


class Gateway(ThreadingHTTPServer):
    """Answers as etcd's gateway would, by a function: method, body and token to status and lines."""

    daemon_threads = True

    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked = answers, list[str]()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def open(self, user: str = "") -> Etcd:
        source = HttpSource("etcd", (Endpoint("127.0.0.1", self.server_port),), None, user, "secret" if user else "")
        return Etcd(source, ThreadRuntime())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        method = self.path.removeprefix("/v3/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(method)
        status, lines = self.server.answers(method, body, self.headers.get("Authorization", ""))
        self.send_response(status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            data = line.encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def gateway() -> Iterator[Callable[[Answers], Gateway]]:
    started: list[Gateway] = []

    def start(answers: Answers) -> Gateway:
        started.append(Gateway(answers))
        return started[-1]

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def error(code: int, message: str) -> str:
    return json.dumps({"error": message, "message": message, "code": code})


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "says"),
    [
        (404, Code.NOT_FOUND, "etcdserver: requested lease not found", EtcdRefused, "lease not found"),
        (412, Code.EXISTS, "etcdserver: lease already exists", EtcdRefused, "already exists"),
        (403, Code.DENIED, "etcdserver: permission denied", EtcdRefused, "permission denied; the user needs a role"),
        (429, Code.EXHAUSTED, "etcdserver: mvcc: database space exceeded", EtcdRefused, "compact and defragment"),
        (503, Code.UNAVAILABLE, "etcdserver: no leader", OutcomeUnknown, "no leader"),
        (504, Code.DEADLINE, "etcdserver: request timed out", OutcomeUnknown, "timed out"),
        (500, Code.INTERNAL, "etcdserver: something", OutcomeUnknown, "something"),
    ],
)
def test_what_etcd_refuses_is_certain_and_what_it_cannot_tell_is_not(
    gateway: Callable[[Answers], Gateway], status: int, code: int, message: str, kind: type, says: str
) -> None:
    etcd = gateway(lambda *_: (status, [error(code, message)])).open()
    with pytest.raises(kind, match=says) as caught:
        run(etcd.call("kv/txn", {}, 5.0))
    assert type(caught.value) is kind
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    run(etcd.close())


def test_an_error_inside_an_answer_of_200_is_an_error(gateway: Callable[[Answers], Gateway]) -> None:
    inside = json.dumps({"error": {"grpc_code": 14, "http_code": 503, "message": "no leader", "http_status": "x"}})
    etcd = gateway(lambda *_: (200, [inside])).open()
    with pytest.raises(OutcomeUnknown, match="no leader"):
        run(etcd.call("lease/keepalive", {}, 5.0))
    run(etcd.close())


def test_an_error_inside_a_watch_ends_it(gateway: Callable[[Answers], Gateway]) -> None:
    created = json.dumps({"result": {"created": True}})
    inside = json.dumps({"error": {"grpc_code": 14, "http_code": 503, "message": "no leader"}})
    etcd = gateway(lambda *_: (200, [created, inside])).open()
    with run(etcd.watch("YQ==", 1, 5.0)) as watch, pytest.raises(StoreUnavailable, match="no leader"):
        run(watch.told(5.0))
    run(etcd.close())


def test_a_watch_of_a_history_that_was_compacted_is_over(gateway: Callable[[Answers], Gateway]) -> None:
    canceled = json.dumps({"result": {"canceled": True, "compact_revision": "7"}})
    etcd = gateway(lambda *_: (200, [json.dumps({"result": {"created": True}}), canceled])).open()
    with run(etcd.watch("YQ==", 1, 5.0)) as watch:
        assert run(watch.told(5.0)) == set()
    run(etcd.close())


def test_what_is_no_etcd_is_told(gateway: Callable[[Answers], Gateway]) -> None:
    etcd = gateway(lambda *_: (200, ["<html>hello</html>"])).open()
    with pytest.raises(OutcomeUnknown, match="not an answer of etcd"):
        run(etcd.call("kv/txn", {}, 5.0))
    run(etcd.close())
    etcd = gateway(lambda *_: (404, ["404 page not found"])).open()
    with pytest.raises(StoreUnavailable, match="HTTP 404: 404 page not found; it does not serve") as caught:
        run(etcd.call("kv/txn", {}, 5.0))
    assert not isinstance(caught.value, OutcomeUnknown)
    run(etcd.close())
    etcd = gateway(lambda *_: (502, ["bad gateway"])).open()
    with pytest.raises(OutcomeUnknown, match="HTTP 502: bad gateway"):
        run(etcd.call("kv/txn", {}, 5.0))
    run(etcd.close())


def test_a_login_is_made_once_and_again_when_it_is_forgotten(gateway: Callable[[Answers], Gateway]) -> None:
    known = ["token-1", "token-2"]

    def answers(method: str, body: dict[str, Any], token: str) -> tuple[int, list[str]]:
        if method == "auth/authenticate":
            assert body == {"name": "me", "password": "secret"}
            return 200, [json.dumps({"token": known[0]})]
        if token != known[0]:
            return 401, [error(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")]
        return 200, ["{}"]

    server = gateway(answers)
    etcd = server.open("me")
    for _ in range(2):
        assert run(etcd.call("kv/txn", {}, 5.0)) == {}
    del known[0]
    assert run(etcd.call("kv/txn", {}, 5.0)) == {}
    assert server.asked == ["auth/authenticate", "kv/txn", "kv/txn", "kv/txn", "auth/authenticate", "kv/txn"]
    run(etcd.close())


def test_a_login_that_is_never_taken_is_tried_once_more_and_no_oftener(gateway: Callable[[Answers], Gateway]) -> None:
    def answers(method: str, body: dict[str, Any], token: str) -> tuple[int, list[str]]:
        if method == "auth/authenticate":
            return 200, [json.dumps({"token": "t"})]
        return 401, [error(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")]

    server = gateway(answers)
    etcd = server.open("me")
    with pytest.raises(EtcdRefused, match="invalid auth token"):
        run(etcd.call("kv/txn", {}, 5.0))
    assert server.asked.count("kv/txn") == 2
    run(etcd.close())


def test_a_user_of_a_cluster_without_users_may_come_in(gateway: Callable[[Answers], Gateway]) -> None:
    def answers(method: str, body: dict[str, Any], token: str) -> tuple[int, list[str]]:
        if method == "auth/authenticate":
            return 412, [error(Code.EXISTS, "etcdserver: authentication is not enabled")]
        return 200, ["{}"]

    etcd = gateway(answers).open("me")
    assert run(etcd.call("kv/txn", {}, 5.0)) == {}
    run(etcd.close())
