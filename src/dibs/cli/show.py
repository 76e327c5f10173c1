"""Show all that is known of one lock: its holder, leader or runner, the waiters, and the last eviction.

For a name of dibs once it shows the last runs: slot, outcome, how long, and where.

With --store it also shows what the store promises; --json always has that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dibs.cli.lines import print_json, printable, write
from dibs.cli.options import add_common
from dibs.cli.where import Nowhere, looking
from dibs.core.once.history import Past, maybe_read
from dibs.holder import LEADS, Eviction, Leader, LockState
from dibs.stores.guarantees import Ability, Bound, Guarantees, Promise

if TYPE_CHECKING:
    from dibs import Client

SHOWN = 10
"""Runs that people are shown; --json has all that are remembered."""

USAGE = "dibs show [OPTIONS] NAME"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs show` takes."""
    parser.add_argument("name", metavar="NAME", help="which lock")
    parser.add_argument("--store", action="store_true", help="also show what its store promises")
    add_common(parser)


def main(args: argparse.Namespace) -> int:
    """Do it."""
    with looking(args) as client:
        state, guarantees = client.show(args.name), client.guarantees
        runs = runs_of(client, args.name)
    if args.json:
        print_json(facts(state, guarantees, runs))
    else:
        write(page(state, guarantees, runs, promised=args.store))
    return 0


def runs_of(client: Client | Nowhere, name: str) -> Sequence[Past]:
    """What is remembered of the slots of *name*, the latest last."""
    record = None if Ability.RECORDS in client.guarantees.cannot else client.record(name)
    history = maybe_read(record) if record is not None else None
    return () if history is None else history.runs


def page(state: LockState, guarantees: Guarantees, runs: Sequence[Past] = (), *, promised: bool) -> str:
    """Write it for people."""
    lines = [
        ("name", state.name),
        *(("held by", str(holder)) for holder in state.holders or ("nobody",)),
        *((("leader", str(leader)),) if (leader := leader_of(state)) else ()),
        ("fence", f"{state.fence} was the last one given out" if state.fence else "it was never locked"),
        *((f"waits {place}", str(waiter)) for place, waiter in enumerate(state.waiting, 1)),
        *(("run", str(run)) for run in reversed(runs[-SHOWN:])),
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
        *((f"  {field.replace('_', ' ')}", str(it)) for field, it in said),
        *((f"  cannot {ability}", why) for ability, why in guarantees.cannot.items()),
    ]


def facts(state: LockState, guarantees: Guarantees, runs: Sequence[Past] = ()) -> dict[str, object]:
    """Write it for programs."""
    leader = leader_of(state)
    said = guarantees._asdict() | {"cannot": {str(ability): why for ability, why in guarantees.cannot.items()}}
    return {
        "name": state.name,
        "fence": state.fence,
        "holder": state.holder._asdict() if state.holder else None,
        "holders": [holder._asdict() for holder in state.holders],
        "leader": {"candidate": leader.candidate, "term": leader.term} if leader else None,
        "runs": [run._asdict() for run in runs],
        "waiting": [waiter._asdict() for waiter in state.waiting],
        "evicted": state.evicted._asdict() if state.evicted else None,
        "remarks": list(state.remarks),
        "guarantees": {field: it._asdict() if isinstance(it, Promise | Bound) else it for field, it in said.items()},
    }


def _eviction(eviction: Eviction) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(eviction.at))
    return f"fence {eviction.fence} at {at} by {eviction.by}: {eviction.reason or 'no reason given'}"
