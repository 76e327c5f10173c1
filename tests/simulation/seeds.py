"""Which seeds the campaigns of histories play: other ones in each run, and the same ones again on request.

``DIBS_SIM_SEEDS=100000`` plays more of them. Each run begins at a base of its own, which pytest prints on top and
``DIBS_SIM_BASE`` repeats. A test that needs a certain seed names it, and is the same in every run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

SEEDS = int(os.environ.get("DIBS_SIM_SEEDS", "12000"))
"""Histories of the main campaign; the others play a part of that number."""

BASE = int(os.environ.get("DIBS_SIM_BASE", "0"))


def chunks(count: float, size: int) -> Iterator[range]:
    """*count* seeds from the base on, in ranges of *size*: one test each."""
    end = BASE + int(count)
    for first in range(BASE, end, size):
        yield range(first, min(first + size, end))
