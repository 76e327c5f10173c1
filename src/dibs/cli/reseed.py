"""Let all nodes of a Redlock vote again, with fences above all that were ever given out.

  dibs reseed 1795961372604144 --url redlock://redis1,redis2,redis3

Use it after a majority of the nodes has lost its memory. Nobody knows then which fences were given out, so no lock is
granted until an operator says where to go on. FLOOR is the highest fence that any guard has seen. All nodes have to be
reachable. An earlier holder may still believe that it has its lock, beside the next holder: only what checks the fence
tells them apart.

Exit codes: 0 all nodes vote, and every fence is above FLOOR; 64 wrong usage, or a store that is no Redlock; 69 a node
is not available; some of the others may vote already, so call it again.
"""

from __future__ import annotations

import argparse

from dibs.cli.exits import Exit
from dibs.cli.lines import print_json, write
from dibs.cli.options import add_common, fence
from dibs.cli.where import url_of
from dibs.errors import NotSupported

USAGE = "dibs reseed [OPTIONS] FLOOR"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs reseed` takes."""
    parser.add_argument("floor", type=fence, metavar="FLOOR", help="the highest fence that any guard has seen")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    url = url_of(args)
    if "redlock" not in url.partition(":")[0]:
        raise NotSupported("only a redlock has nodes that lost their memory and wait to be told the highest fence")
    from dibs.stores.redlock.reseed import reseed  # noqa: PLC0415 - it needs the driver

    reseed(url, args.floor)
    if args.json:
        print_json({"reseeded": True, "floor": args.floor})
    else:
        write(f"all nodes vote, and every fence is above {args.floor}")
    return Exit.DONE
