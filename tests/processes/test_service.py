"""FastAPI behind a real server: of a hundred requests with one key one is carried out, also when a server is killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from servers.ports import Port
from servers.process import until


class Answer(NamedTuple):
    status: int
    body: Any
    replayed: bool
    retry_after: str | None


class Server:
    """One uvicorn with the service."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port, self.process = port, process

    def post(self, key: str, amount: int = 1, **more: object) -> Answer:
        """Send one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"authorization": "me", "content-type": "application/json"}
        headers |= {"idempotency-key": f'"{key}"'} if key else {}
        try:
            connection.request("POST", "/charges", json.dumps({"amount": amount, **more}), headers)
            response = connection.getresponse()
            replay = response.getheader("idempotency-replay") == "true"
            return Answer(response.status, json.loads(response.read()), replay, response.getheader("retry-after"))
        finally:
            connection.close()

    def runs(self) -> bool:
        """Whether it answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            assert self.process.poll() is None, "the server has ended"
            return False
        finally:
            connection.close()


class Service(NamedTuple):
    servers: list[Server]
    folder: Path

    def lines(self, word: str) -> list[str]:
        """What was done, of a kind."""
        return [line for line in (self.folder / "charges").read_text().splitlines() if line.startswith(word)]


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    charges, url, reserved = folder / "charges", f"sqlite:///{folder}/dibs.db", Port()
    port = reserved.number
    environment = {**os.environ, "CHARGES": str(charges), "DIBS_URL": url, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield Server(port, process)
        finally:
            process.kill()
            reserved.give_back()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two servers over one store."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "charges").touch()
    with ExitStack() as stack:
        servers = [stack.enter_context(served(folder)) for _ in range(2)]
        for server in servers:
            until(server.runs, "the server answers", 60)
        yield Service(servers, folder)


def test_a_hundred_requests_with_one_key_charge_once(service: Service) -> None:
    """Over two servers; the others get 409 or the answer of the first, and in the end all have that."""
    key, before = str(uuid.uuid4()), len(service.lines("begun"))

    def one(number: int) -> Answer:
        return service.servers[number % 2].post(key, 7, seconds=0.2)

    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(one, range(100)))
    assert len(service.lines("begun")) == before + 1
    done = [answer for answer in answers if answer.status == 201]
    busy = [answer for answer in answers if answer.status == 409]
    assert len(done) + len(busy) == 100
    assert [answer.replayed for answer in done].count(False) == 1
    assert {answer.retry_after for answer in busy} <= {"1"}
    again = [one(number) for number in range(2)]
    assert {(answer.status, answer.replayed) for answer in again} == {(201, True)}
    assert len({json.dumps(answer.body) for answer in [*done, *again]}) == 1


def test_the_four_ways_to_be_wrong(service: Service) -> None:
    server, key = service.servers[0], str(uuid.uuid4())
    assert server.post("").status == 400
    assert server.post('"').status == 400
    assert server.post(key, 1).status == 201
    assert server.post(key, 2).status == 422
    assert server.post(str(uuid.uuid4()), "no number").status == 422  # type: ignore[arg-type]


@pytest.mark.parametrize("later", ["go on", "ZeroDivisionError"])
def test_work_after_the_answer_neither_delays_nor_undoes_it(service: Service, later: str) -> None:
    """A background task that lasts, and one that fails: the answer is here, and is what a repetition gets."""
    key, before = str(uuid.uuid4()), len(service.lines("begun"))
    first, again = (server.post(key, 3, later=later) for server in service.servers)
    assert (first.status, again.status) == (201, 201)
    assert (first.replayed, again.replayed) == (False, True)
    assert len(service.lines("begun")) == before + 1
    if later == "go on":
        sign = service.folder / later
        sign.touch()
        until(lambda: not sign.exists(), "the work after the answer has ended", 60)


def test_when_a_server_is_killed_in_the_middle_the_next_request_is_carried_out(service: Service) -> None:
    """At once: the store sees that its process has ended. What had been begun may be done twice; it is not stuck."""
    key, other = str(uuid.uuid4()), service.servers[0]
    with served(service.folder) as doomed, ThreadPoolExecutor(1) as pool:
        until(doomed.runs, "the server answers", 60)
        sent = pool.submit(doomed.post, key, 9, seconds=50)
        until(lambda: [line for line in service.lines("begun") if line.endswith(" 9")] != [], "the work is begun", 30)
        assert other.post(key, 9, seconds=50).status == 409
        doomed.process.send_signal(signal.SIGKILL)
        doomed.process.wait(30)
        with pytest.raises((OSError, http.client.HTTPException)):
            sent.result(30)
    assert other.post(key, 8).status == 201, "nobody knows what the killed one was about"
    assert other.post(key, 8).replayed
    assert len([line for line in service.lines("charged") if line.endswith((" 8", " 9"))]) == 1
