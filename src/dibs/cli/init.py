"""Make the tables of a PostgreSQL store, or print the SQL that makes them.

  dibs init --sql | psql shop

A user with the right to create tables does not need this: dibs makes them at the first use. For other users
somebody with that right runs it once, and grants them SELECT, INSERT, UPDATE and DELETE on the tables.

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
        raise Misuse(f"{_kind(url)} has no tables to make; give a postgresql: URL")
    if args.sql:
        from dibs.stores.postgres.tables import ddl  # noqa: PLC0415 - only here

        (print_json if args.json else write)(ddl().rstrip("\n"))
        return Exit.DONE
    from dibs import connect  # noqa: PLC0415 - not needed for --help

    with connect(url, namespace=namespace_of(args)) as client:
        client.show("x")  # the first step makes them; this one locks nothing
    print_json({"ready": True}) if args.json else write("the tables are there")
    return Exit.DONE


def _kind(url: str) -> str:
    """What *url* names, without anything of it that may be a password."""
    scheme, colon, _ = url.partition(":")
    if not url:
        return "the store of this user, an SQLite file,"
    return f"a {scheme}: store" if colon and scheme.replace("+", "").isalpha() else "what this URL names"
