"""A scheduler of which several replicas run and one leads: it notes the jobs that are due, again and again.

What it writes to refuses a leader of an older term: the fence is compared in the statement that writes. On SIGTERM it
stops its work, gives the place up, and the next replica leads at once.
"""

import signal
import sqlite3
import sys

import dibs

PAUSE = 0.05


def main(path: str) -> None:
    """Stand for leader, and schedule for as long as we lead."""
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute("CREATE TABLE IF NOT EXISTS job (round INTEGER, term INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS leader (only INTEGER PRIMARY KEY CHECK (only = 1), term INTEGER)")
    database.execute("INSERT OR IGNORE INTO leader VALUES (1, 0)")
    with dibs.connect() as client:
        election = client.election("scheduler", ttl=15)
        signal.signal(signal.SIGTERM, lambda *_: election.stop())
        election.run(lambda term: schedule(database, term))


def schedule(database: sqlite3.Connection, term: dibs.Term) -> None:
    """Claim the term first, then write in it: from then on nothing of an older term is accepted."""
    database.execute("UPDATE leader SET term = ? WHERE term <= ?", (term.fence, term.fence))
    print(f"{term.candidate} leads, term {term.fence}", flush=True)
    while not term.lost.wait(PAUSE):
        database.execute(
            "INSERT INTO job SELECT 1 + coalesce(max(round), 0), ? FROM job WHERE ? = (SELECT term FROM leader)",
            (term.fence, term.fence),
        )


if __name__ == "__main__":
    main(sys.argv[1])
