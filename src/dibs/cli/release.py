"""Give back a lock that dibs acquire took.

LEASE is the text that it printed, else $DIBS_TOKEN. Under dibs run it takes the lock from dibs run, which then
ends its command: exit from the command instead.

Exit codes: 0 given back; 76 the lease had been lost before; 64 wrong usage; 69 the store is not available, and
the lock ends with its ttl.
"""

from __future__ import annotations

import argparse

from dibs.cli.lines import print_json, printable, write
from dibs.cli.options import add_common, lease_text
from dibs.cli.where import connected

USAGE = "dibs release [OPTIONS] [LEASE]"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs release` takes."""
    parser.add_argument("text", metavar="LEASE", nargs="?", help="the text that dibs acquire printed ($DIBS_TOKEN)")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    text = lease_text(args)
    with connected(args) as client:
        lease = client.resume(text)
        lease.release()
    if args.json:
        print_json({"released": True, "name": lease.name, "fence": lease.fence})
    else:
        write(f"{printable(lease.name)} with fence {lease.fence} was given back")
    return 0
