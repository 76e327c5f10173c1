"""Show all that is known of one lock: who holds it, who waits, and who broke it.

With --store also what its store promises; --json always has that.
"""

from __future__ import annotations

import argparse
import time

from dibs.cli.lines import print_json, printable, write
from dibs.cli.options import add_common
from dibs.cli.where import looking
from dibs.holder import LEADS, Eviction, Leader, LockState
from dibs.stores.guarantees import Guarantees, Promise

USAGE = "dibs show [OPTIONS] NAME"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs show` takes."""
    parser.add_argument("name", metavar="NAME", help="which lock")
    parser.add_argument("--store", action="store_true", help="show what its store promises, too")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    with looking(args) as client:
        state, guarantees = client.show(args.name), client.guarantees
    if args.json:
        print_json(facts(state, guarantees))
    else:
        write(page(state, guarantees, promised=args.store))
    return 0


def page(state: LockState, guarantees: Guarantees, *, promised: bool) -> str:
    """Write it for people."""
    lines = [
        ("name", state.name),
        ("held by", str(state.holder or "nobody")),
        *((("leader", str(leader)),) if (leader := leader_of(state)) else ()),
        ("fence", f"{state.fence} was the last one given out" if state.fence else "it was never locked"),
        *((f"waits {place}", str(waiter)) for place, waiter in enumerate(state.waiting, 1)),
        ("broken", _eviction(state.evicted) if state.evicted else "never"),
        ("store", guarantees.name),
        *(("  remark", remark) for remark in state.remarks),
        *(promises(guarantees) if promised else ()),
    ]
    return "\n".join(f"{what:20}{printable(text)}" for what, text in lines)


def leader_of(state: LockState) -> Leader | None:
    """Tell who leads, if the lock is the place of a leader."""
    holder = state.holder
    return Leader.of(holder) if holder is not None and holder.note.startswith(LEADS) else None


def promises(guarantees: Guarantees) -> list[tuple[str, str]]:
    """Write what the store promises, event by event."""
    said = ((field, it) for field, it in guarantees._asdict().items() if field not in {"name", "cannot"})
    return [
        *(
            (f"  {field.replace('_', ' ')}", f"{it.effect}: {it.why}" if isinstance(it, Promise) else it)
            for field, it in said
        ),
        *((f"  cannot {ability}", why) for ability, why in guarantees.cannot.items()),
    ]


def facts(state: LockState, guarantees: Guarantees) -> dict[str, object]:
    """Write it for programs."""
    leader = leader_of(state)
    said = guarantees._asdict() | {"cannot": {str(ability): why for ability, why in guarantees.cannot.items()}}
    return {
        "name": state.name,
        "fence": state.fence,
        "holder": state.holder._asdict() if state.holder else None,
        "leader": {"candidate": leader.candidate, "term": leader.term} if leader else None,
        "waiting": [waiter._asdict() for waiter in state.waiting],
        "evicted": state.evicted._asdict() if state.evicted else None,
        "remarks": list(state.remarks),
        "guarantees": {field: it._asdict() if isinstance(it, Promise) else it for field, it in said.items()},
    }


def _eviction(eviction: Eviction) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(eviction.at))
    return f"fence {eviction.fence} at {at} by {eviction.by}: {eviction.reason or 'no reason given'}"
