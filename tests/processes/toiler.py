"""A process that counts under the lock and writes down all it does, for it will be stopped and killed."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import dibs
from dibs.runtime.clock import boot_time

from .tally import Tally


class Report:
    """Lines in a file, each whole or not at all, that survive the death of the writer."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, **facts: object) -> None:
        """One line."""
        os.write(self._fd, f"{json.dumps({'pid': os.getpid(), **facts})}\n".encode())


def main() -> None:
    """One increment for each lease, with the fence shown at the read and at the write."""
    url, folder, ttl = sys.argv[1:]
    tally, report, number = Tally(Path(folder)), Report(Path(folder) / f"report-{os.getpid()}"), 0
    with dibs.connect(url) as client:
        lock = client.lock("tally", ttl=float(ttl), timeout=5)
        print("true", flush=True)
        while not (Path(folder) / "enough").exists():
            number += 1
            count_once(lock, tally, report, f"{os.getpid()}.{number}")


def count_once(lock: dibs.Lock, tally: Tally, report: Report, act: str) -> None:
    """Acquire, count, release: whatever the store says to that, it is a fact for the report."""
    asked_at = boot_time()
    try:
        lease = lock.acquire()
    except (dibs.NotAcquired, dibs.StoreUnavailable):
        return  # somebody is stopped for long, maybe in the middle of a write
    granted_at = boot_time()
    now, left = boot_time(), lease.expires_in()
    valid_until = now + left if left else asked_at  # we were stopped at the last step of acquire, and lost it there
    report(what="granted", fence=lease.fence, asked_at=asked_at, granted_at=granted_at, valid_until=valid_until)
    add_one(tally, report, act, lease.fence)
    called_at = boot_time()
    report(what="releases", at=called_at)  # whoever is killed in the middle of it may have given it back
    try:
        lease.release()
    except dibs.LeaseLost:
        report(what="lost", told_at=called_at, returned_at=boot_time())
    except dibs.StoreUnavailable:
        report(what="left", at=called_at)
    else:
        report(what="given back", called_at=called_at, returned_at=boot_time())


def add_one(tally: Tally, report: Report, act: str, fence: int) -> None:
    """Read, let others run, write; say before what is tried, and after what came of it."""
    seen = tally.read(fence)
    if seen is not None:
        time.sleep(0.02)  # long enough to be met here, by the one who stops and kills
        report(what="tries", act=act)
        done = tally.write(seen + 1, fence, act)
        report(what="done" if done else "refused", act=act)


if __name__ == "__main__":
    main()
