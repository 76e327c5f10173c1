"""Does everybody get a share when four processes write to one file, and how long does the unluckiest wait?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from crew import crew
from locks import BARE, DIBS, FASTENERS, FILELOCK, FLOCK, MITHRIL, PATIENT, PORTALOCKER, missing, opened
from page import Aim, Answer, millis, table, times
from rounds import Scale, interleaved, median, percentile

PROCESSES = 4

FAIR = 1.5
WORST = 0.05

OWN_NAMES = [DIBS, BARE, MITHRIL]
ONE_NAME = [DIBS, PATIENT, FLOCK, PORTALOCKER, FILELOCK, FASTENERS, MITHRIL]


class Share(NamedTuple):
    """What one process got."""

    cycles_per_second: float
    p99: float
    worst: float
    """Seconds of the longest step: to get the lock, or to give it back."""


def measure(folder: Path, scale: Scale) -> Answer:
    """First each with a name of its own, so that only the file is shared; then all with one name."""
    seconds, rounds = (1.0, 1) if scale.quick else (4.0, 5)
    own = _shares(folder, OWN_NAMES, seconds, rounds, own_names=True)
    one = _shares(folder, ONE_NAME, seconds, rounds, own_names=False)
    unfair = median(_spread(shares) for shares in own[DIBS])
    worst = max(share.worst for shares in own[DIBS] for share in shares)
    aims = [
        Aim(
            "4 processes on one file: the largest share over the smallest", f"≤ {FAIR}×", times(unfair), unfair <= FAIR
        ),
        Aim("4 processes on one file: the worst wait", f"< {WORST * 1e3:g} ms", f"{millis(worst)} ms", worst < WORST),
    ]
    return Answer([_table("each its own name", own), _table("all one name", one)], aims)


def _shares(
    folder: Path, kinds: Sequence[str], seconds: float, rounds: int, *, own_names: bool
) -> dict[str, list[list[Share]]]:
    runs = {
        kind: lambda kind=kind: crew(PROCESSES, hammer, kind, folder, seconds, own_names)
        for kind in kinds
        if kind not in missing()
    }
    return interleaved(runs, rounds)


def hammer(number: int, start: Barrier, kind: str, folder: Path, seconds: float, own_names: bool) -> Share:
    """Take the lock and give it back, again and again."""
    now, steps = time.perf_counter, []
    with opened(kind, folder, f"name-{number}" if own_names else "name") as guard:
        with guard():
            pass  # everything is open now
        start.wait()
        began = now()
        while (asked := now()) < began + seconds:
            with guard():
                got = now()
                steps.append(got - asked)
                got = now()
            steps.append(now() - got)
        took = now() - began
    return Share(len(steps) / 2 / took, percentile(steps, 0.99), max(steps))


def _spread(shares: Sequence[Share]) -> float:
    rates = [share.cycles_per_second for share in shares]
    return max(rates) / min(rates)


def _table(what: str, found: dict[str, list[list[Share]]]) -> str:
    rows = []
    for kind, rounds in found.items():
        total = median(sum(share.cycles_per_second for share in shares) for shares in rounds)
        worsts = [max(share.worst for share in shares) for shares in rounds]
        p99 = median(max(share.p99 for share in shares) for shares in rounds)
        spread = median(_spread(shares) for shares in rounds)
        rows.append([kind, f"{total:,.0f}", times(spread), millis(p99), millis(median(worsts)), millis(max(worsts))])
    head = [f"{PROCESSES} processes, {what}", "cycles/s", "largest share over smallest", "p99 wait, ms"]
    return table([*head, "worst wait in a round, ms", "worst of all, ms"], rows)
