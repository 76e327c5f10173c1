"""A process that leads when it can, writes down what happens to it, and writes to a ledger when it should not any more.

The end of its stdin ends its candidacy. *kind* is ``heeds``: it stops when it is told, after one last write; or
``deaf``: it goes on.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import dibs

from .ledgers import ClaimedTable


def main() -> None:
    """Lead, again and again."""
    url, folder, kind, ttl = sys.argv[1:]
    with dibs.connect(url) as client:
        election = client.election("ledger", ttl=float(ttl), retry=0.02, on_stuck="exit")
        threading.Thread(target=stop_at_the_end_of_stdin, args=[election], daemon=True).start()
        say(stands=election.candidate)
        election.run(lambda term: lead(term, ClaimedTable(Path(folder)), deaf=kind == "deaf"))


def stop_at_the_end_of_stdin(election: dibs.Election) -> None:
    """As a signal would."""
    sys.stdin.read()
    election.stop()


def lead(term: dibs.Term, ledger: ClaimedTable, *, deaf: bool) -> None:
    """Read, lead for as long as the term lasts, and write then: who stands still in a write would hold up everybody."""
    seen = ledger.read(term.fence)
    say(leads=term.fence)
    term.lost.wait()
    time.sleep(0.05)  # it takes a while to stop
    say(told=term.lost_reason, wrote=add(ledger, seen, term.fence) is not None)
    while deaf:
        time.sleep(0.01)


def add(ledger: ClaimedTable, seen: int | None, fence: int) -> int | None:
    """Write one more than was *seen*; None if that was refused."""
    return seen + 1 if seen is not None and ledger.write(seen + 1, fence) else None


def say(**facts: object) -> None:
    """One line."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
