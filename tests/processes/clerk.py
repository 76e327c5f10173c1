"""A process that does, step by step, what it is told: acquire, read, write, release. Its answers are JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dibs

from .ledgers import LEDGERS, Ledger


class Clerk:
    """Adds to the number in the ledger under the lock, and lets the test decide when each step comes."""

    def __init__(self, lock: dibs.Lock, ledger: Ledger) -> None:
        self._lock, self._ledger = lock, ledger
        self._seen: int | None = None

    def acquire(self) -> int:
        """Wait for the lock; the fence."""
        self._lease = self._lock.acquire()
        return self._lease.fence

    def read(self) -> int | None:
        """Look at the number."""
        self._seen = self._ledger.read(self._lease.fence)
        return self._seen

    def add(self, amount: str) -> bool:
        """Write the number that was seen, plus *amount*, without asking whether the lock is still ours."""
        return self._seen is not None and self._ledger.write(self._seen + int(amount), self._lease.fence)

    def release(self) -> str:
        """Give the lock back; what became of the lease."""
        try:
            self._lease.release()
        except dibs.LeaseLost as lost:
            return str(lost.reason)
        return "released"


def main() -> None:
    """Obey until stdin ends."""
    url, folder, ledger, ttl = sys.argv[1:]
    with dibs.connect(url) as client:
        clerk = Clerk(client.lock("account:42", ttl=float(ttl)), LEDGERS[ledger](Path(folder)))
        for line in sys.stdin:
            step, *args = line.split()
            print(json.dumps(getattr(clerk, step)(*args)), flush=True)


if __name__ == "__main__":
    main()
