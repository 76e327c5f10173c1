"""One of several replicas that have the same cron line: at each word from the test, it calls for the slot it is."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import dibs


def main() -> None:
    """Answer each ``go`` with what came of it; with ``hang`` whoever runs the slot never comes to its end."""
    url, folder, line, ttl = sys.argv[1:]
    journal = (Path(folder) / "journal").open("a", encoding="utf-8", buffering=1)
    say(wall=time.time())
    with dibs.connect(url) as client:
        for word in sys.stdin:
            try:
                with client.once("report", cron=line, ttl=float(ttl), timeout=None, retries=3) as run:
                    journal.write(f"started {run.slot} {run.attempt} {run.lease.fence}\n")
                    if word.strip() == "hang" and run.attempt == 1:
                        say(hangs=run.slot)
                        time.sleep(600)
                    journal.write(f"completed {run.slot} {run.attempt} {run.lease.fence}\n")
                say(ran=run.slot)
            except dibs.Skipped as skipped:
                say(skipped=skipped.slot, reason=skipped.reason)


def say(**facts: object) -> None:
    """One line."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
