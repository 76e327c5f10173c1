"""How much is asked of a Redis server each time a lock changes hands, and does that grow with those who wait?"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import dibs
from page import Aim, Answer, table
from redis_server import HOST, RedisServer
from rounds import Scale

CROWDS = [2, 20, 200]

MOST = 6

REQUESTS = {"evalsha", "eval", "subscribe", "ping"}
"""What dibs sends; the other commands run inside its scripts."""


def measure(folder: Path, scale: Scale) -> Answer:
    """Counted by the server."""
    with RedisServer(folder) as server:
        counted = {size: asked(server, size, 3 if scale.quick else 10) for size in CROWDS}
    requests = {size: sum(counts.get(name, 0.0) for name in REQUESTS) for size, counts in counted.items()}
    rows = [[str(size), f"{requests[size]:.2f}", f"{sum(counts.values()):.1f}"] for size, counts in counted.items()]
    aim = Aim(
        f"requests for one acquisition and release, {', '.join(map(str, CROWDS))} clients wanting the lock",
        f"≤ {MOST}",
        ", ".join(f"{each:.2f}" for each in requests.values()),
        max(requests.values()) <= MOST,
    )
    head = ["clients that want one lock", "requests each time", "commands, those inside scripts included"]
    return Answer([table(head, rows)], [aim])


def asked(server: RedisServer, size: int, rounds: int) -> dict[str, float]:
    """The commands for each acquisition with its release, while *size* clients are never done wanting it."""
    ready, go = threading.Barrier(size + 1), threading.Barrier(size + 1)

    def want() -> None:
        with dibs.connect(f"redis://{HOST}:{server.port}/0") as client:
            lock = client.lock(f"asked by {size}")
            with lock:
                pass
            ready.wait()
            go.wait()
            for _ in range(rounds):
                with lock:
                    pass
            ready.wait()

    threads = [threading.Thread(target=want) for _ in range(size)]
    for thread in threads:
        thread.start()
    ready.wait()
    before = Counter(server.commands())
    go.wait()
    ready.wait()
    counted = Counter(server.commands()) - before
    for thread in threads:
        thread.join()
    return {name: count / size / rounds for name, count in counted.items()}
