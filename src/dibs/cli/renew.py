"""Extend a lease that dibs acquire printed, by its ttl from now.

LEASE is that text; without it, $DIBS_TOKEN is used. It is not needed under dibs run, which renews its lease itself,
but does no harm there.

Exit codes: 0 renewed; 76 the lease was lost; 64 wrong usage; 69 the store is not available.
"""

from __future__ import annotations

import argparse

from dibs.cli.lines import print_json, printable, write
from dibs.cli.options import add_common, lease_text
from dibs.cli.where import connected
from dibs.stores.store import Claim

USAGE = "dibs renew [OPTIONS] [LEASE]"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs renew` takes."""
    parser.add_argument("text", metavar="LEASE", nargs="?", help="the text that dibs acquire printed ($DIBS_TOKEN)")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it. The holder stays who it is: the death of the dibs run above us must still free the lock."""
    from dibs.core.handover import from_text  # noqa: PLC0415 - not needed for --help

    text = lease_text(args)
    claim, _ = from_text(text)
    with connected(args) as client:
        client.renew(text)
    _tell(args.json, claim)
    return 0


def _tell(json: bool, claim: Claim) -> None:
    if json:
        print_json({"renewed": True, "name": claim.name, "fence": claim.fence, "ttl": claim.ttl})
    else:
        write(f"{printable(claim.name)} with fence {claim.fence} is held for {claim.ttl:g} s from now")
