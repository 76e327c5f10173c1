"""Let all nodes of a Redlock vote again, with fences above all that were ever given out.

  dibs reseed 1795961372604144 --url redlock://redis1,redis2,redis3

For the day on which a majority of the nodes lost its memory: nobody can know then which fences were given out, and no
lock is granted until somebody says it. FLOOR is the highest fence that any guard has seen. All nodes have to be there.
Whoever held a lock until then may still believe in it, beside the next one: only what checks the fence tells them
apart.

Exit codes: 0 all nodes vote, and every fence is above FLOOR; 64 wrong usage, or a store that is no Redlock; 69 a node
is not available; those that were told vote already, so say it again.
"""

from __future__ import annotations

import argparse

from dibs.cli.exits import Exit
from dibs.cli.lines import print_json, write
from dibs.cli.options import add_common, fence
from dibs.cli.where import connected

USAGE = "dibs reseed [OPTIONS] FLOOR"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs reseed` takes."""
    parser.add_argument("floor", type=fence, metavar="FLOOR", help="the highest fence that any guard has seen")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    with connected(args) as client:
        client.reseed(args.floor)
    if args.json:
        print_json({"reseeded": True, "floor": args.floor})
    else:
        write(f"all nodes vote, and every fence is above {args.floor}")
    return Exit.DONE
