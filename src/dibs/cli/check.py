"""Tell whether a lease still holds its lock. Changes nothing.

LEASE is the text that dibs acquire printed; without it, $DIBS_TOKEN is used, which dibs run sets for its command.

Exit codes: 0 it holds; 76 it does not; 64 wrong usage; 69 the store is not available, and nothing is known.
"""

from __future__ import annotations

import argparse

from dibs.cli.exits import Exit
from dibs.cli.lines import print_json, printable, say, write
from dibs.cli.options import add_common, lease_text
from dibs.cli.where import looking
from dibs.holder import Holder

USAGE = "dibs check [OPTIONS] [LEASE]"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs check` takes."""
    parser.add_argument("text", metavar="LEASE", nargs="?", help="the text that dibs acquire printed ($DIBS_TOKEN)")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it.

    By the fence, which no two grants share: `Client.resume` would renew the lease and make this short-lived
    process its holder.
    """
    from dibs.core.handover import from_text  # noqa: PLC0415 - not needed for --help

    claim, _ = from_text(lease_text(args))
    with looking(args) as client:
        state = client.show(claim.name)
    ours = next((holder for holder in state.holders if holder.fence == claim.fence), None)
    holder, holds = ours or state.holder, ours is not None  # several hold a name that is shared
    _tell(args.json, claim.name, claim.fence, holder, holds)
    return Exit.DONE if holds else Exit.LOST


def _tell(json: bool, name: str, fence: int, holder: Holder | None, holds: bool) -> None:
    if json:
        print_json({"holds": holds, "name": name, "fence": fence, "holder": holder._asdict() if holder else None})
    elif holds and holder is not None:
        ends = "" if holder.expires_in is None else f" for another {holder.expires_in:.1f} s"
        write(f"{printable(name)} is held with fence {fence}{ends}")
    if not holds:
        say(is_over(name, fence, holder))


def is_over(name: str, fence: int, holder: Holder | None) -> str:
    """Say that a lease does not hold its lock, and who does."""
    over = f"the lease on {name!r} with fence {fence} is over (given back, expired or broken)"
    return f"{over}; the lock is held by {holder or 'nobody'}"
