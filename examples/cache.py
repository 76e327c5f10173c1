"""A value that is dear to make, in a cache that many processes read: when it is too old, one of them makes it anew.

Without the lock all of them would, at the same moment, each time it runs out: a stampede. A lock that is late or not to
be had costs time here and nothing else, so then the value is made all the same.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dibs


def cached(path: Path, seconds: float, make: Callable[[], str]) -> str:
    """What is in *path*, if it is not older than *seconds*; else what *make* makes, for all who ask."""
    found = fresh(path, seconds)
    if found is not None:
        return found
    try:
        with dibs.lock(f"cache:{path.name}", ttl=10, timeout=10):
            found = fresh(path, seconds)  # made while we waited, most likely
            return made(path, make) if found is None else found
    except (dibs.NotAcquired, dibs.LeaseLost, dibs.StoreUnavailable):
        return made(path, make)


def fresh(path: Path, seconds: float) -> str | None:
    """What is there and young enough."""
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_mtime > time.time() - seconds else None
    except FileNotFoundError:
        return None


def made(path: Path, make: Callable[[], str]) -> str:
    """Make it, and put it where all find it, in one piece."""
    text = make()
    new = path.with_name(f"{path.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
    return text


def report() -> str:
    """Something that takes long."""
    print("making it")
    time.sleep(0.5)
    return "the report\n"


if __name__ == "__main__":
    print(cached(Path(sys.argv[1]), 60, report), end="")
