"""How long does it take from the release in one process until a waiter in another has the lock?"""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from crew import partner
from locks import DIBS, DIBS_ASYNC, FASTENERS, FILELOCK, FLOCK, MITHRIL, PATIENT, PORTALOCKER, missing, opened
from page import Aim, Answer, millis, table, times
from rounds import Scale, interleaved, median, percentile, ratio, together

AIM = 0.003

HELD = (0.05, 0.3)
"""Seconds for which the lock is held before it is handed over: at random, so that pollers are met at any phase."""

KINDS = [FLOCK, DIBS, DIBS_ASYNC, FILELOCK, FASTENERS, PORTALOCKER, MITHRIL, PATIENT]


def measure(folder: Path, scale: Scale) -> Answer:
    """One holder, one waiter."""
    count = 5 if scale.quick else 20
    runs = {kind: lambda kind=kind: handoffs(kind, folder, count) for kind in KINDS if kind not in missing()}
    found = interleaved(runs, scale.rounds if scale.quick else 5)
    middle = {kind: [median(took) for took in rounds] for kind, rounds in found.items()}
    everything = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [
            kind,
            times(ratio(middle[kind], middle[FLOCK])),
            millis(percentile(took, 0.5)),
            millis(percentile(took, 0.99)),
            millis(max(took)),
        ]
        for kind, took in sorted(everything.items(), key=lambda item: percentile(item[1], 0.5))
    ]
    p50 = percentile(everything[DIBS], 0.5)
    aim = Aim("hand-off to a waiter in another process, p50", f"< {AIM * 1e3:g} ms", f"{millis(p50)} ms", p50 < AIM)
    head = [f"hand-off, {len(everything[DIBS])} each", "p50 ratio", "p50, ms", "p99, ms", "worst, ms"]
    return Answer([table(head, rows)], [aim])


def handoffs(kind: str, folder: Path, count: int) -> list[float]:
    """Hand the lock over *count* times; the seconds it took."""
    took = []
    waiter = partner(wait_again_and_again, kind, folder)
    with opened(kind, folder, "name") as guard:
        waiter.recv()
        for _ in range(count):
            with guard():
                waiter.send(True)
                waiter.recv()  # it asks now
                time.sleep(random.uniform(*HELD))
                released_at = time.monotonic()
            took.append(waiter.recv() - released_at)
            waiter.recv()  # and has given it back
    waiter.send(False)
    return took


def wait_again_and_again(holder: Connection, kind: str, folder: Path) -> None:
    """Ask for the lock when the holder says so, and tell when it came."""
    with opened(kind, folder, "name") as guard:
        with guard():
            pass
        holder.send("ready")
        while holder.recv():
            holder.send("asking")
            with guard():
                got_it_at = time.monotonic()
            holder.send(got_it_at)
            holder.send("free")
