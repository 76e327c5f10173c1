"""Migrations in their smallest form, for entrypoint.sh: each statement once, and how many have run in the database."""

import sqlite3
import sys

STATEMENTS = [
    "CREATE TABLE invoice (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)",
    "ALTER TABLE invoice ADD COLUMN currency TEXT NOT NULL DEFAULT 'EUR'",
]


def migrate(path: str) -> int:
    """Do what has not been done, and return how many statements that were."""
    database = sqlite3.connect(path, isolation_level=None)
    done: int = database.execute("PRAGMA user_version").fetchone()[0]
    for number, statement in enumerate(STATEMENTS[done:], done + 1):
        database.executescript(f"BEGIN; {statement}; PRAGMA user_version = {number}; COMMIT;")
    database.close()
    return len(STATEMENTS) - done


if __name__ == "__main__":
    print(f"{migrate(sys.argv[1])} statements")
