"""Two processes that pass one lock to each other: how long it takes until the one who waits has it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection

from crew import partner

Guard = Callable[[], AbstractContextManager[object]]

Opened = Callable[[], AbstractContextManager[Guard]]
"""Makes a lock, as something to enter, in whichever process it is called: so it has to be picklable."""

HELD = (0.02, 0.06)
"""Seconds for which the lock is held before it is handed over."""


def handoffs(opened: Opened, count: int) -> list[float]:
    """Hand the lock over *count* times; the seconds it took."""
    took = []
    waiter = partner(wait_again_and_again, opened)
    with opened() as guard:
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


def wait_again_and_again(holder: Connection, opened: Opened) -> None:
    """Ask for the lock when the holder says so, and tell when it came."""
    with opened() as guard:
        with guard():
            pass
        holder.send("ready")
        while holder.recv():
            holder.send("asking")
            with guard():
                got_it_at = time.monotonic()
            holder.send(got_it_at)
            holder.send("free")
