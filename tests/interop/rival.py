"""A process that locks the way another library does, step by step as it is told; its answers are JSON.

This one is for Python: ``python -m interop.rival redis-py PORT KEY``. rival.cjs is the same for Node.js.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import redis

RETRY = 0.01
"""Seconds between two tries, as somebody who polls in a hurry."""


class Rival(Protocol):
    """What each has in common; *ms* is the ttl."""

    def take(self, ms: int) -> bool:
        """Try once."""

    def extend(self, ms: int) -> bool:
        """Prolong what was taken."""

    def free(self) -> bool:
        """Give it back; false if it is not ours any more."""


class RedisPy:
    """The `Lock` of redis-py."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client, self._key = client, key

    def take(self, ms: int) -> bool:
        self._lock = self._client.lock(self._key, timeout=ms / 1000)
        return bool(self._lock.acquire(blocking=False))

    def extend(self, ms: int) -> bool:
        return not_refused(lambda: self._lock.extend(ms / 1000, replace_ttl=True))

    def free(self) -> bool:
        return not_refused(self._lock.release)


def not_refused(step: Callable[[], object]) -> bool:
    """Whether redis-py did it."""
    try:
        step()
    except redis.exceptions.LockError:
        return False
    return True


class Script:
    """The commands of the page on distributed locks of redis.io, as people copy them into their scripts."""

    FREE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"
    EXTEND = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._client, self._key = client, key

    def take(self, ms: int) -> bool:
        self._value = f"{time.time_ns()}"
        return bool(self._client.set(self._key, self._value, nx=True, px=ms))

    def extend(self, ms: int) -> bool:
        return bool(self._client.eval(self.EXTEND, 1, self._key, self._value, ms))

    def free(self) -> bool:
        return bool(self._client.eval(self.FREE, 1, self._key, self._value))


def count(rival: Rival, path: Path, rounds: int) -> int:
    """Add 1 to the number in a file, under the lock, so often."""
    for _ in range(rounds):
        while not rival.take(10_000):
            time.sleep(RETRY)
        seen = int(path.read_text(encoding="ascii"))
        time.sleep(0.001)  # what makes it lose updates if two are here
        path.write_text(str(seen + 1), encoding="ascii")
        rival.free()
    return rounds


def main() -> None:
    """Obey until stdin ends."""
    kind, port, key = sys.argv[1:]
    with redis.Redis(port=int(port)) as client:
        rival = RedisPy(client, key) if kind == "redis-py" else Script(client, key)
        print("true", flush=True)
        for line in sys.stdin:
            match line.split():
                case ["take", ms]:
                    answer: object = rival.take(int(ms))
                case ["extend", ms]:
                    answer = rival.extend(int(ms))
                case ["free"]:
                    answer = rival.free()
                case ["count", path, rounds]:
                    answer = count(rival, Path(path), int(rounds))
                case words:
                    raise ValueError(words)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
