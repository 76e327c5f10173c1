"""The clocks: one for deadlines, which counts suspend and which nobody can set, and one for people."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

boot_time: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since this machine booted, the same in all its processes.

`time.monotonic` stands still on Linux while a laptop sleeps, and the server's clock does not: a lease would look valid
after it ended. macOS has no CLOCK_BOOTTIME, and its monotonic clock stops in sleep too: see docs/guarantees.
"""

wall_clock: Callable[[], float] = time.time
"""Unix time by the clock of this machine, for what people read. Nothing is decided by it: it may be set at any time."""
