"""Break a lock: take it away from the grant with this fence.

  dibs break invoice:42 --fence 1718000000000000 --reason 'host db3 is dead'

Only if that very grant still holds it: look at dibs ls first. Its holder hears of it at its next renewal, up to
a third of its ttl later, and may go on writing until then, beside whoever gets the lock next; only what checks the
fence is safe from that. The reason is kept and shown by dibs show.

Exit codes: 0 broken; 75 that grant does not hold the lock (any more), nothing was done; 64 wrong usage; 69 the
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

USAGE = "dibs break [OPTIONS] NAME --fence N --reason TEXT"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs break` takes."""
    parser.add_argument("name", metavar="NAME", help="which lock")
    parser.add_argument("--fence", type=fence, required=True, metavar="N", help="whose grant, as dibs ls shows it")
    parser.add_argument("--reason", required=True, metavar="TEXT", help="why; others will want to know")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    if not args.reason.strip():
        raise Misuse("--reason is empty; say why, others will want to know")
    with looking(args) as client:
        broken = client.evict(args.name, fence=args.fence, reason=args.reason)
        holder = None if broken else client.show(args.name).holder
    _tell(args, broken, holder)
    return Exit.DONE if broken else Exit.NOT_ACQUIRED


def _tell(args: argparse.Namespace, broken: bool, holder: Holder | None) -> None:
    if args.json:
        facts = {"broken": broken, "name": args.name, "fence": args.fence}
        print_json(facts if broken else {**facts, "holder": holder._asdict() if holder else None})
    elif broken:
        write(f"{printable(args.name)} was taken from fence {args.fence}")
    if not broken:
        say(f"nothing was broken: {args.name!r} is held by {holder or 'nobody'}, not with fence {args.fence}")
