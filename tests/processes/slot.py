"""A process that takes slots of a semaphore: again and again until it is enough, or once, to die with it."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dibs

SLOTS = 3


class Room:
    """Counts who is inside, and knows nothing of the semaphore: a number in a file, under a lock of the kernel."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "room"

    def enter(self, weight: int) -> None:
        """Go in, and write down how many there are, and the most that there were."""
        with self._numbers() as numbers:
            numbers[0] += weight
            numbers[1] = max(numbers[1], numbers[0])
            numbers[2] += 1

    def leave(self, weight: int) -> None:
        """Go out."""
        with self._numbers() as numbers:
            numbers[0] -= weight

    def numbers(self) -> list[int]:
        """How many are inside, the most that were, and how often somebody went in."""
        with self._numbers() as numbers:
            return numbers

    @contextmanager
    def _numbers(self) -> Iterator[list[int]]:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            numbers = [int(number) for number in os.pread(fd, 100, 0).split()] or [0, 0, 0]
            yield numbers
            os.pwrite(fd, b"%20d %20d %20d" % tuple(numbers), 0)
        finally:
            os.close(fd)


def hammer(lock: dibs.Lock, folder: Path, weight: int) -> None:
    """Go in and out until it is enough."""
    room = Room(folder)
    while not (folder / "enough").exists():
        with lock:
            room.enter(weight)
            time.sleep(0.001)
            room.leave(weight)


def main() -> None:
    """As *what* says: hammer, or hold and wait to be killed."""
    url, folder, what, weight, ttl = sys.argv[1:]
    with dibs.connect(url) as client:
        lock = client.semaphore("slots", SLOTS, weight=int(weight), ttl=float(ttl), timeout=60)
        print("true", flush=True)
        sys.stdin.readline()
        if what == "hammer":
            hammer(lock, Path(folder), int(weight))
        else:
            lease = lock.acquire()
            print(lease.fence, flush=True)
            sys.stdin.readline()


if __name__ == "__main__":
    main()
