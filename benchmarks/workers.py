"""How much of the time do workers lose who work one after the other under one lock?"""

from __future__ import annotations

import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

from crew import crew
from locks import DIBS, FASTENERS, FILELOCK, FLOCK, MITHRIL, PORTALOCKER, missing, opened
from page import Aim, Answer, table, times
from rounds import Scale, interleaved, median

WORKERS, TURNS, WORK = 8, 10, 0.01

IDEAL = WORKERS * TURNS * WORK

AIM = 1.25

KINDS = [FLOCK, DIBS, FILELOCK, FASTENERS, PORTALOCKER, MITHRIL]


def measure(folder: Path, scale: Scale) -> Answer:
    """From the common start until the last has done its last turn."""
    runs = {kind: lambda kind=kind: total(kind, folder) for kind in KINDS if kind not in missing()}
    found = interleaved(runs, 1 if scale.quick else 3)
    middle = {kind: median(totals) for kind, totals in found.items()}
    rows = [
        [kind, times(seconds / IDEAL), f"{seconds:.2f}", f"{max(found[kind]):.2f}"]
        for kind, seconds in sorted(middle.items(), key=lambda item: item[1])
    ]
    over = middle[DIBS] / IDEAL
    what = f"{WORKERS} workers × {TURNS} × {WORK * 1e3:g} ms under one lock, over the ideal {IDEAL:g} s"
    head = [f"{WORKERS} workers × {TURNS} turns × {WORK * 1e3:g} ms", "over the ideal", "s", "slowest round, s"]
    return Answer([table(head, rows)], [Aim(what, f"≤ {AIM}×", times(over), over <= AIM)])


def total(kind: str, folder: Path) -> float:
    """Seconds for all of them."""
    spans = crew(WORKERS, take_turns, kind, folder)
    return float(max(end for _, end in spans) - min(start for start, _ in spans))


def take_turns(_number: int, start: Barrier, kind: str, folder: Path) -> tuple[float, float]:
    """Work under the lock, several times."""
    with opened(kind, folder, "name") as guard:
        with guard():
            pass
        start.wait()
        began = time.monotonic()
        for _ in range(TURNS):
            with guard():
                time.sleep(WORK)
        return began, time.monotonic()
