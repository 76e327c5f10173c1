"""How long something took, by a clock that stands still while the machine does.

A test may say that something happens at once, and not after a timeout or a poll. It cannot say so by the real time: a
machine that is busy, or stands still for a second, would make it a lie. So time is counted here in naps: a thread that
sleeps for 10 ms again and again has as many of them as the machine had time for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

NAP = 0.01


class Naps(threading.Thread):
    """Counts its naps until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="naps", daemon=True)
        self.count = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Nap, and count."""
        while not self._over.wait(NAP):
            self.count += 1

    def stop(self) -> float:
        """End, and return the seconds that were counted."""
        self._over.set()
        self.join()
        return self.count * NAP


@contextmanager
def took(at_most: float) -> Iterator[None]:
    """Assert that the block takes no longer than so many seconds; an error of the block comes out as it is."""
    naps = Naps()
    naps.start()
    try:
        yield
    finally:
        seconds = naps.stop()
    assert seconds <= at_most, f"took {seconds:g} s, which is more than {at_most:g} s"
