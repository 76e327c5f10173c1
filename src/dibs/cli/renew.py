"""Extend a lease that dibs acquire printed, by its ttl from now.

LEASE is that text, else $DIBS_TOKEN. Under dibs run there is no need: it renews its lease itself.

Exit codes: 0 renewed; 76 the lease was lost; 64 wrong usage; 69 the store is not available.
"""

from __future__ import annotations

import argparse

from dibs.cli.lines import print_json, printable, write
from dibs.cli.options import add_common, lease_text, namespace_of

USAGE = "dibs renew [OPTIONS] [LEASE]"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs renew` takes."""
    parser.add_argument("text", metavar="LEASE", nargs="?", help="the text that dibs acquire printed ($DIBS_TOKEN)")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    from dibs import connect  # noqa: PLC0415 - not needed for --help

    text = lease_text(args)
    with connect(args.url, namespace=namespace_of(args)) as client:
        lease = client.resume(text)
        left = lease.expires_in()
        lease.detach()
    if args.json:
        print_json({"renewed": True, "name": lease.name, "fence": lease.fence, "expires_in": round(left, 3)})
    else:
        write(f"{printable(lease.name)} with fence {lease.fence} is held for {left:.1f} s from now")
    return 0
