"""Evict a holder: take its lock away, by the fence of its grant.

  dibs evict invoice:42 --fence 1718000000000000 --reason 'host db3 is dead'

Nothing is done unless that very grant still holds the lock: look at dibs ls first. The holder hears of it at its next
renewal, up to a third of its ttl later. Until then it may go on writing, beside the next holder; only what checks the
fence is safe from that. The reason is kept and shown by dibs show. (dibs break is another name for this verb.)

Exit codes: 0 evicted; 75 that grant does not hold the lock (any more), nothing was done; 64 wrong usage; 69 the
store is not available.
"""

from __future__ import annotations

import argparse

from dibs.cli.exits import Exit
from dibs.cli.lines import print_json, printable, say, write
from dibs.cli.options import add_common, fence
from dibs.cli.where import looking
from dibs.errors import Misuse
from dibs.holder import Holder

USAGE = "dibs evict [OPTIONS] NAME --fence N --reason TEXT"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs evict` takes."""
    parser.add_argument("name", metavar="NAME", help="which lock")
    parser.add_argument("--fence", type=fence, required=True, metavar="N", help="which grant, as dibs ls shows it")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why: it is shown to others")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    if not args.reason.strip():
        raise Misuse("--reason is empty; say why, others will want to know")
    with looking(args) as client:
        evicted = client.evict(args.name, fence=args.fence, reason=args.reason)
        holder = None if evicted else client.show(args.name).holder
    _tell(args, evicted, holder)
    return Exit.DONE if evicted else Exit.NOT_ACQUIRED


def _tell(args: argparse.Namespace, evicted: bool, holder: Holder | None) -> None:
    if args.json:
        facts = {"broken": evicted, "name": args.name, "fence": args.fence}
        print_json(facts if evicted else {**facts, "holder": holder._asdict() if holder else None})
    elif evicted:
        write(f"{printable(args.name)} was taken from fence {args.fence}")
    if not evicted:
        say(f"nothing was evicted: {args.name!r} is held by {holder or 'nobody'}, not with fence {args.fence}")
