"""A process that counts in a plain file under the lock: reads, lets others run, writes. It starts when told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import dibs

from .ledgers import PlainFile


def main() -> None:
    """Count so often, then say so."""
    url, folder, rounds = sys.argv[1:]
    number = PlainFile(Path(folder))
    with dibs.connect(url) as client:
        lock = client.lock("number")
        print("true", flush=True)
        sys.stdin.readline()
        for _ in range(int(rounds)):
            with lock as lease:
                seen = number.read(lease.fence)
                time.sleep(0.0002)  # what makes it lose updates if two are here
                number.write(seen + 1, lease.fence)


if __name__ == "__main__":
    main()
