"""List who holds what.

  dibs ls
  dibs ls invoice:

Shows the locks that are held; with PREFIX only those whose names begin with it. EXPIRES is the number of seconds
after which the lease ends unless it is renewed; FENCE is the number that dibs evict needs. A name with several
holders has a line for each of them, and SHARE says what that holder has of the name.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from dibs.cli.lines import print_json, printable, write
from dibs.cli.options import add_common
from dibs.cli.where import looking
from dibs.holder import Holder

USAGE = "dibs ls [OPTIONS] [PREFIX]"

HEAD = ("NAME", "FENCE", "HOST", "PID", "USER", "SINCE", "EXPIRES", "SHARE", "NOTE")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs ls` takes."""
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that begin with it")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    with looking(args) as client:
        holders = client.holders(args.prefix)
    if args.json:
        print_json([holder._asdict() for holder in holders])
    else:
        write(table([HEAD, *map(row, holders)]) if holders else "no locks are held")
    return 0


def row(holder: Holder) -> Sequence[str]:
    """Write one holder as the cells of its row."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    ends = "-" if holder.expires_in is None else f"{holder.expires_in:.1f} s"
    who = (holder.name, holder.fence, holder.host, holder.pid, holder.user)
    facts = (*who, since, ends, holder.share or "all", holder.note)
    return [printable(str(fact)) for fact in facts]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)) for each in rows)
    return "\n".join(line.rstrip() for line in lines)
