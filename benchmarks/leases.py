"""What do ten thousand leases cost that are held in one process for a while?"""

from __future__ import annotations

import asyncio
import os
import resource
import threading
import time
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import dibs
import dibs.aio
from crew import alone
from page import Aim, Answer, table
from rounds import Scale

COUNT, TTL = 10_000, 30.0

BUSY = 0.05


class Cost(NamedTuple):
    """What was found in the process that held them."""

    threads: int
    """Those of the whole process, while all were held, less the main thread."""
    share: float
    """Of one core."""
    kib: float
    """Resident memory for each lease."""
    lost: int
    taking: float
    giving: float
    """Seconds for all."""


def measure(folder: Path, scale: Scale) -> Answer:
    """Hold them for more than three renewals each, in a process that does nothing else."""
    seconds = 12.0 if scale.quick else 40.0
    url = f"sqlite://{folder}"
    runs = {
        "dibs": alone(hold, f"{url}/leases.db", seconds),
        "dibs, async": alone(hold_async, f"{url}/leases-async.db", seconds),
    }
    traced = alone(traced_bytes, folder)
    rows = [
        [
            name,
            str(cost.threads),
            f"{cost.share:.2%}",
            f"{cost.kib:.2f}",
            str(cost.lost),
            f"{cost.taking / COUNT * 1e6:.0f}",
            f"{cost.giving / COUNT * 1e6:.0f}",
        ]
        for name, cost in runs.items()
    ]
    head = [f"{COUNT:,} leases, ttl {TTL:g} s, for {seconds:g} s", "threads besides main", "share of a core"]
    head += ["KiB of memory each", "lost", "taking, µs each", "giving back, µs each"]
    share, lost = max(cost.share for cost in runs.values()), sum(cost.lost for cost in runs.values())
    aims = [
        Aim(f"{COUNT:,} leases held: share of a core", f"< {BUSY:.0%}", f"{share:.2%}", share < BUSY),
        Aim(f"{COUNT:,} leases held: threads to keep them", "1", _threads(runs), runs["dibs"].threads == 1),
        Aim(f"{COUNT:,} leases held: lost", "0", str(lost), lost == 0),
    ]
    text = f"Python objects account for {traced:,.0f} bytes of each lease (`tracemalloc`)."
    return Answer([table(head, rows), text], aims)


def _threads(runs: dict[str, Cost]) -> str:
    return ", ".join(f"{cost.threads} ({name})" for name, cost in runs.items())


def hold(url: str, seconds: float) -> Cost:
    """Blocking: everything that happens while we sleep is done by the keeper."""
    with dibs.connect(url) as client:
        with client.lock("warm"):
            before, began = _resident(), time.perf_counter()
        leases = [client.lock(f"lease {number}", ttl=TTL).acquire() for number in range(COUNT)]
        taking, memory = time.perf_counter() - began, _resident() - before
        used, since = time.process_time(), time.perf_counter()
        time.sleep(seconds)
        share = (time.process_time() - used) / (time.perf_counter() - since)
        threads, lost = threading.active_count() - 1, sum(bool(lease.lost) for lease in leases)
        began = time.perf_counter()
        for lease in leases:
            lease.release()
        return Cost(threads, share, memory / 1024 / COUNT, lost, taking, time.perf_counter() - began)


def hold_async(url: str, seconds: float) -> Cost:
    """The same in an event loop."""
    return asyncio.run(_hold_async(url, seconds))


async def _hold_async(url: str, seconds: float) -> Cost:
    async with dibs.aio.connect(url) as client:
        async with client.lock("warm"):
            before, began = _resident(), time.perf_counter()
        leases = [await client.lock(f"lease {number}", ttl=TTL).acquire() for number in range(COUNT)]
        taking, memory = time.perf_counter() - began, _resident() - before
        used, since = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (time.process_time() - used) / (time.perf_counter() - since)
        threads, lost = threading.active_count() - 1, sum(bool(lease.lost) for lease in leases)
        began = time.perf_counter()
        for lease in leases:
            await lease.release()
        return Cost(threads, share, memory / 1024 / COUNT, lost, taking, time.perf_counter() - began)


def traced_bytes(folder: Path) -> float:
    """Bytes of Python objects for each lease, in a run of its own: tracing slows everything down."""
    with dibs.connect(f"sqlite://{folder}/traced.db") as client:
        with client.lock("warm"):
            pass
        tracemalloc.start()
        leases = [client.lock(f"lease {number}", ttl=TTL).acquire() for number in range(COUNT)]
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return size / len(leases)


def _resident() -> float:
    """Bytes of memory that this process has; where nobody tells, the most it ever had."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
