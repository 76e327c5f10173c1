"""Make the tables of a PostgreSQL store, or print the SQL that makes them.

  dibs init --sql | psql shop

They are made at the first use anyway, if the user may. This is for those who may not: whoever may
runs it once, and grants SELECT, INSERT, UPDATE and DELETE on them.

Exit codes: 0 they are there, or were printed; 64 wrong usage, or a store that has no tables to make;
69 the store is not available, or refuses.
"""

from __future__ import annotations

import argparse
import os

from dibs.cli.exits import Exit
from dibs.cli.lines import print_json, write
from dibs.cli.options import add_common, namespace_of
from dibs.errors import Misuse

USAGE = "dibs init [OPTIONS]"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs init` takes."""
    parser.add_argument("--sql", action="store_true", help="print the SQL, and connect to nothing")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    url = args.url or os.environ.get("DIBS_URL") or ""
    if not url.startswith("postgres") and (url or not args.sql):
        raise Misuse(
            f"{url or 'the store of this user, an SQLite file,'} has no tables to make; give a postgresql: URL"
        )
    if args.sql:
        from dibs.stores.postgres_schema import ddl  # noqa: PLC0415 - only here

        (print_json if args.json else write)(ddl().rstrip("\n"))
        return Exit.DONE
    from dibs import connect  # noqa: PLC0415 - not needed for --help

    with connect(url, namespace=namespace_of(args)) as client:
        client.show("x")  # the first step makes them; this one locks nothing
    print_json({"ready": True}) if args.json else write("the tables are there")
    return Exit.DONE
