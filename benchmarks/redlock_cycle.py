"""What does a lock on five independent Redis servers cost, with all of them well and with one hung?

redlock-ng and redlock-py share one module name, so only one of them can be installed, and measured, at a time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import select
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import dibs
from page import Aim, Answer, at_most, micros, millis, table, times
from redis_floors import FREE, TAKE
from redis_server import HOST, Plain, RedisServer, encoded
from rounds import Scale, interleaved, median, percentile, ratio, timed, together

NODES, QUORUM, TTL = 5, 3, 30.0

HUNG = 1000
"""Requests without an answer, after which the floor leaves a node out: its socket would be full."""

FLOOR, DIBS = "raw epoll, return at quorum (floor)", "dibs"
REDLOCK_NG, REDLOCK_PY, POTTERY, MITHRIL = "redlock-ng", "redlock-py", "pottery Redlock", "mithril-locks Redlock"

Cycle = Callable[[], object]


def measure(folder: Path, scale: Scale) -> Answer:
    """All well in the same rounds; then dibs and the floor with one node stopped."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(NODES):
            own = folder / str(number)
            own.mkdir()
            servers.append(stack.enter_context(RedisServer(own)))
        ports = [server.port for server in servers]
        cycles = {kind: stack.enter_context(open_kind(ports)) for kind, open_kind in KINDS.items() if is_there(kind)}
        blocks = {kind: _block(cycle, scale.seconds) for kind, cycle in cycles.items()}
        for block in blocks.values():
            block()
        gc.freeze()  # what the libraries are made of is not looked through again for each of the others
        found = interleaved(blocks, scale.rounds)
        hung = {}
        servers[2]._process.send_signal(signal.SIGSTOP)
        try:
            for kind in (FLOOR, DIBS):
                hung[kind] = [timed(cycles[kind], scale.seconds) for _ in range(scale.rounds)]
        finally:
            servers[2]._process.send_signal(signal.SIGCONT)
    return _answer(found, hung)


def is_there(kind: str) -> bool:
    """Whether it is installed here."""
    try:
        return kind in {FLOOR, DIBS} or bool(metadata.version(kind.removesuffix(" Redlock")))
    except metadata.PackageNotFoundError:
        return False


def _block(cycle: Cycle, seconds: float) -> Callable[[], list[float]]:
    return lambda: timed(cycle, seconds)


@contextlib.contextmanager
def _floor(ports: list[int]) -> Iterator[Cycle]:
    """Prepared bytes on five sockets: take with a fence, wait for three, give back, wait for three."""
    calls = []
    for script in (TAKE, FREE):
        for port in ports:
            plain = Plain(port)
            sha = plain("SCRIPT", "LOAD", script)
            plain.close()
        calls.append(encoded("EVALSHA", sha, "2", "floor", "floor:fence", "token"))
    sockets = {(each := socket.create_connection((HOST, port))).fileno(): each for port in ports}
    waiting = select.epoll()
    for number, each in sockets.items():
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)
        waiting.register(number, select.EPOLLIN)
    owed = dict.fromkeys(sockets, 0)

    def ask(call: bytes) -> None:
        for number, each in sockets.items():
            if owed[number] < HUNG:
                each.send(call)
                owed[number] += 1
        answered = 0
        while answered < QUORUM:
            for number, _ in waiting.poll():
                owed[number] -= sockets[number].recv(4096).count(b":")
                answered += owed[number] == 0

    def cycle() -> None:
        ask(calls[0])
        ask(calls[1])

    yield cycle
    waiting.close()
    for each in sockets.values():
        each.close()


@contextlib.contextmanager
def _dibs(ports: list[int]) -> Iterator[Cycle]:
    with dibs.connect("redlock://" + ",".join(f"{HOST}:{port}" for port in ports)) as client:
        lock = client.lock("x", ttl=TTL)

        def cycle() -> None:
            with lock:
                pass

        yield cycle


@contextlib.contextmanager
def _redlock_ng(ports: list[int]) -> Iterator[Cycle]:
    lock = importlib.import_module("redlock").Redlock([f"redis://{HOST}:{port}/0" for port in ports])

    def cycle() -> None:
        lock.release(lock.acquire("ng", int(TTL * 1000)))

    yield cycle


@contextlib.contextmanager
def _redlock_py(ports: list[int]) -> Iterator[Cycle]:
    manager = importlib.import_module("redlock").Redlock([{"host": HOST, "port": port} for port in ports])

    def cycle() -> None:
        manager.unlock(manager.lock("py", int(TTL * 1000)))

    yield cycle


@contextlib.contextmanager
def _pottery(ports: list[int]) -> Iterator[Cycle]:
    redis, pottery = importlib.import_module("redis"), importlib.import_module("pottery")
    masters = {redis.Redis(port=port) for port in ports}
    lock = pottery.Redlock(key="pottery", masters=masters, auto_release_time=TTL)

    def cycle() -> None:
        lock.acquire()
        lock.release()

    yield cycle
    for master in masters:
        master.close()


@contextlib.contextmanager
def _mithril(ports: list[int]) -> Iterator[Cycle]:
    mithril, backends = importlib.import_module("mithril"), importlib.import_module("mithril.backends")
    structlog = importlib.import_module("structlog")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # its lines would be most of the time
    redis = importlib.import_module("redis")
    clients = [redis.Redis(port=port, socket_timeout=1.0, socket_connect_timeout=1.0) for port in ports]
    fences = importlib.import_module("mithril._fencing").InMemoryFencingTokenProvider()  # the cheapest; it asks for one
    config = importlib.import_module("mithril.backends._redlock").RedlockConfig(clients, fencing_provider=fences)
    backend: Any = backends.RedlockBackend(config)

    def cycle() -> None:
        with mithril.Lock("mithril", backend=backend, ttl=TTL, timeout=60):
            pass

    yield cycle
    for client in clients:
        client.close()


KINDS = {
    FLOOR: _floor,
    DIBS: _dibs,
    REDLOCK_NG: _redlock_ng,
    REDLOCK_PY: _redlock_py,
    POTTERY: _pottery,
    MITHRIL: _mithril,
}


def _answer(found: Mapping[str, list[list[float]]], hung: Mapping[str, list[list[float]]]) -> Answer:
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    rows = [
        [kind, times(ratio(middle[kind], middle[FLOOR])), micros(median(middle[kind]))]
        for kind in sorted(middle, key=lambda kind: median(middle[kind]))
    ]
    head = ["acquire + release on five nodes, nobody else wants it", "ratio", "median, µs"]
    slow = [
        [kind, micros(median(median(took) for took in rounds)), millis(percentile(together(rounds), 0.99))]
        for kind, rounds in hung.items()
    ]
    hung_head = ["the same, one node stopped", "median, µs", "99 %, ms"]
    peers = [kind for kind in middle if kind not in {FLOOR, DIBS}]
    aims = [_below("over the floor", ratio(middle[DIBS], middle[FLOOR]), 1.6)]
    if peers:
        best = min(peers, key=lambda kind: median(middle[kind]))
        aims.append(_below(f"over the best peer, {best}", ratio(middle[DIBS], middle[best]), 0.4))
    growth = median(median(took) for took in hung[DIBS]) - median(middle[DIBS])
    aims.append(Aim("a hung node adds to the median", "< 0.2 ms", f"{growth * 1e3:.3f} ms", growth < 0.0002))
    return Answer([table(head, rows), table(hung_head, slow)], aims)


def _below(what: str, value: float, limit: float) -> Aim:
    return at_most(f"acquire + release on five nodes, {what}", limit, value)
