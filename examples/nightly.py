"""A job that every replica's cron starts, and one of them does: once for each day, whatever their clocks say.

A replica that finds the job being done stands by, and does it again if the other one is killed in the middle of it.
"""

import logging
import sys

import dibs

logging.basicConfig(level=logging.INFO, format="%(message)s")

client = dibs.connect()


@client.once("nightly-report", every=86_400, timeout=None, retries=2)  # or cron="0 3 * * *", tz="Europe/Berlin"
def report(path: str, *, run: dibs.Run | None = None) -> None:
    """Append one line to the report."""
    assert run is not None
    run.lease.check()
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"report for {run.slot}\n")


if __name__ == "__main__":
    report(sys.argv[1])
