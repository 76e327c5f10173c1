"""What do ten thousand leases in Redis cost that are held in one process for a while?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from crew import alone
from leases import BUSY, COUNT, TTL, Cost, hold, hold_async
from page import Aim, Answer, table
from redis_floors import EXTEND
from redis_server import Plain, RedisServer
from rounds import Scale

MOST_CONNECTIONS = 2

TOGETHER = 100
"""Leases that the floor renews in one call of a script."""

FLOOR = "prepared scripts on a bare socket (floor)"


def measure(folder: Path, scale: Scale) -> Answer:
    """Hold them for some renewals each, in a process that does nothing else."""
    seconds = 12.0 if scale.quick else 40.0
    with RedisServer(folder) as server:
        found = {
            "dibs": _watched(server, lambda: alone(hold, server.url, seconds)),
            "dibs, async": _watched(server, lambda: alone(hold_async, server.url, seconds)),
            FLOOR: _watched(server, lambda: alone(hold_raw, server.port, seconds)),
        }
    rows = [
        [
            name,
            str(cost.threads),
            str(connections),
            f"{cost.share:.2%}",
            f"{busy:.2%}",
            str(cost.lost),
            f"{cost.taking / COUNT * 1e6:.0f}",
            f"{cost.giving / COUNT * 1e6:.0f}",
        ]
        for name, (cost, connections, busy) in found.items()
    ]
    head = [f"{COUNT:,} leases in Redis, ttl {TTL:g} s, for {seconds:g} s", "threads besides main", "connections"]
    head += ["share of a core", "of the server's", "lost", "taking, µs each", "giving back, µs each"]
    ours = {name: each for name, each in found.items() if name != FLOOR}
    share, lost = max(each[0].share for each in ours.values()), sum(each[0].lost for each in ours.values())
    threads, connections = max(each[0].threads for each in ours.values()), max(each[1] for each in ours.values())
    what = f"{COUNT:,} leases held in Redis"
    aims = [
        Aim(f"{what}: share of a core", f"< {BUSY:.0%}", f"{share:.2%}", share < BUSY),
        Aim(f"{what}: threads to keep them", "1", str(threads), found["dibs"][0].threads == 1),
        Aim(f"{what}: connections", f"≤ {MOST_CONNECTIONS}", str(connections), connections <= MOST_CONNECTIONS),
        Aim(f"{what}: lost", "0", str(lost), lost == 0),
    ]
    return Answer([table(head, rows)], aims)


def _watched(server: RedisServer, run: Callable[[], Cost]) -> tuple[Cost, int, float]:
    """The cost, the most connections meanwhile, and the server's share of a core."""
    server.clear()
    most, over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.2):
            most = max(most, server.connections())

    looking = threading.Thread(target=look)
    busy, began = server.busy(), time.monotonic()
    looking.start()
    try:
        cost = run()
    finally:
        over.set()
        looking.join()
    return cost, most, (server.busy() - busy) / (time.monotonic() - began)


def hold_raw(port: int, seconds: float) -> Cost:
    """The least: a hundred in one call, and one call after the other, every third of the ttl."""
    plain = Plain(port)
    began = time.perf_counter()
    for number in range(COUNT):
        plain("SET", f"lease {number}", "token", "PX", str(round(TTL * 1000)))
    taking = time.perf_counter() - began
    digest = plain("SCRIPT", "LOAD", EXTEND)
    names = [[f"lease {number}" for number in range(start, start + TOGETHER)] for start in range(0, COUNT, TOGETHER)]
    used, since = time.process_time(), time.perf_counter()
    lost = 0
    while time.perf_counter() < since + seconds:
        lost += COUNT - sum(int(plain("EVALSHA", digest, str(TOGETHER), *batch, "token", "30000")) for batch in names)
        time.sleep(min(TTL / 3, max(0.0, since + seconds - time.perf_counter())))
    share = (time.process_time() - used) / (time.perf_counter() - since)
    plain.close()
    return Cost(threading.active_count() - 1, share, 0.0, lost, taking, 0.0)
