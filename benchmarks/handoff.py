"""How long does it take from the release in one process until a waiter in another has the lock?"""

from __future__ import annotations

import functools
from pathlib import Path

import passing
from locks import DIBS, DIBS_ASYNC, FASTENERS, FILELOCK, FLOCK, MITHRIL, PATIENT, PORTALOCKER, missing, opened
from page import Aim, Answer, millis, table, times
from rounds import Scale, percentile, together

AIM = 0.003

HELD = (0.05, 0.3)
"""Seconds for which the lock is held before it is handed over: at random, so that pollers are met at any phase."""

KINDS = [FLOCK, DIBS, DIBS_ASYNC, FILELOCK, FASTENERS, PORTALOCKER, MITHRIL, PATIENT]


def measure(folder: Path, scale: Scale) -> Answer:
    """One holder, one waiter."""
    count = 5 if scale.quick else 20
    kinds = [kind for kind in KINDS if kind not in missing()]
    rounds = scale.rounds if scale.quick else 5
    found = passing.passed(functools.partial(opened, name="name"), kinds, folder, count, rounds, HELD)
    over = passing.over_one(found, FLOCK)
    everything = {kind: together(rounds) for kind, rounds in found.items()}
    rows = [
        [
            kind,
            times(over[kind]),
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
