"""Give back a lock that dibs acquire took.

LEASE is the text that it printed; without it, $DIBS_TOKEN is used. Do not call this inside dibs run: it would take
the lock away from dibs run, which then ends its command. End the command instead.

Exit codes: 0 given back; 76 the lease is over already, nothing was done; 64 wrong usage; 69 the store is not
available, and the lock ends with its ttl.
"""

from __future__ import annotations

import argparse

from dibs.cli.check import is_over
from dibs.cli.exits import Exit
from dibs.cli.lines import print_json, printable, say, write
from dibs.cli.options import add_common, lease_text
from dibs.cli.where import connected
from dibs.errors import LeaseLost
from dibs.holder import Holder

USAGE = "dibs release [OPTIONS] [LEASE]"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs release` takes."""
    parser.add_argument("text", metavar="LEASE", nargs="?", help="the text that dibs acquire printed ($DIBS_TOKEN)")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    text = lease_text(args)
    with connected(args) as client:
        try:
            lease = client.resume(text)
            lease.release()
        except LeaseLost as error:
            return _refused(args.json, error, client.show(error.name).holder)
    if args.json:
        print_json({"released": True, "name": lease.name, "fence": lease.fence})
    else:
        write(f"{printable(lease.name)} with fence {lease.fence} was given back")
    return 0


def _refused(json: bool, error: LeaseLost, holder: Holder | None) -> int:
    if json:
        facts = {"released": False, "name": error.name, "fence": error.fence}
        print_json({**facts, "holder": holder._asdict() if holder else None})
    say(is_over(error.name, error.fence, holder))
    return Exit.LOST
