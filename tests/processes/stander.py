"""A process that stands in line for a lock, and what becomes of it is the test's: ``stander URL NAME TTL``.

Told to *end*, its main thread ends while another still waits.
"""

from __future__ import annotations

import sys
import threading

import dibs


def main(url: str, name: str, ttl: str) -> None:
    """Stand in line."""
    client = dibs.connect(url)
    threading.Thread(target=client.lock(name, ttl=float(ttl)).acquire, daemon=True).start()
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
