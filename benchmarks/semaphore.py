"""How much is asked of a Redis server each time a slot of a semaphore changes hands, and while nothing happens?"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import dibs
from page import Aim, Answer, table
from redis_asked import REQUESTS
from redis_server import HOST, RedisServer
from rounds import Scale

SLOTS = 10

CROWDS = [20, 200]
"""Clients that want a slot, each as one process would be."""

MOST = 6

IDLE = 1.0
"""Requests a second of each client that waits: it asks again every 5 s."""

Work = Callable[[dibs.Lock], None]


def measure(folder: Path, scale: Scale) -> Answer:
    """Counted by the server."""
    with RedisServer(folder) as server:
        counted = {size: asked(server, size, 3 if scale.quick else 10) for size in CROWDS}
        idle = {size: waited(server, size, 5.0 if scale.quick else 20.0) for size in CROWDS}
    requests = {size: _requests(counts) for size, counts in counted.items()}
    rows = [
        [str(size), f"{requests[size]:.2f}", f"{sum(counted[size].values()):.1f}", f"{idle[size]:.1f}"]
        for size in CROWDS
    ]
    head = [
        f"clients that want one of {SLOTS} slots",
        "requests for each grant",
        "commands, those inside scripts included",
        "requests/s while nothing happens",
    ]
    who = f"a semaphore of {SLOTS} slots, {' and '.join(map(str, CROWDS))} clients wanting one"
    shown, most = ", ".join(f"{each:.2f}" for each in requests.values()), max(requests.values())
    resting = max(rate / (size - SLOTS) for size, rate in idle.items())
    aims = [
        Aim(f"{who}: requests for one acquisition and release", f"≤ {MOST}", shown, most <= MOST),
        Aim(f"{who}: requests/s of each that waits idly", f"≤ {IDLE:g}", f"{resting:.2f}", resting <= IDLE),
    ]
    return Answer([table(head, rows)], aims)


def asked(server: RedisServer, size: int, rounds: int) -> dict[str, float]:
    """The commands for each acquisition with its release, while *size* clients are never done wanting a slot."""

    def rounds_of(lock: dibs.Lock) -> None:
        for _ in range(rounds):
            with lock:
                pass

    with _crowd(server, size, rounds_of) as (go, done):
        before = Counter(server.commands())
        go.wait()
        done.wait()
        counted = Counter(server.commands()) - before
    return {name: count / size / rounds for name, count in counted.items()}


def waited(server: RedisServer, size: int, seconds: float) -> float:
    """The requests a second while all slots are held and the others wait."""
    over = threading.Event()

    def hold(lock: dibs.Lock) -> None:
        with lock:
            over.wait()

    with _crowd(server, size, hold) as (go, done):
        go.wait()
        time.sleep(3)  # until all have asked
        before = Counter(server.commands())
        time.sleep(seconds)
        rate = _requests(Counter(server.commands()) - before) / seconds
        over.set()
        done.wait()
    return rate


@contextmanager
def _crowd(
    server: RedisServer, size: int, work: Callable[[dibs.Lock], None]
) -> Iterator[tuple[threading.Barrier, threading.Barrier]]:
    ready, go, done = (threading.Barrier(size + 1) for _ in range(3))

    def want() -> None:
        with dibs.connect(f"redis://{HOST}:{server.port}/0") as client:
            lock = client.semaphore(f"slots of {size}", SLOTS)
            with lock:
                pass
            ready.wait()
            go.wait()
            work(lock)
            done.wait()

    threads = [threading.Thread(target=want) for _ in range(size)]
    for thread in threads:
        thread.start()
    ready.wait()
    yield go, done
    for thread in threads:
        thread.join()


def _requests(counts: Mapping[str, float]) -> float:
    return sum(counts.get(name, 0.0) for name in REQUESTS)
