"""Run a command once per slot of a schedule, on one of all machines that call for it.

  dibs once nightly-report --cron '0 3 * * *' -- ./report.sh
  dibs once sync --every 15m --retries 2 --stand-by -- ./sync.sh
  dibs once migrate --slot "$RELEASE" --stand-by -- ./migrate.sh

Put the same line into cron, or another scheduler, on every machine. The clock of the store picks the
slot, so it does not matter if the clocks of the machines differ. One of the calls runs COMMAND; all
others exit with 0 and say nothing (-v says why). The store remembers the run; dibs show NAME shows it.

If COMMAND failed or crashed, the slot is not started again, unless a later call in the same slot has
--retries. With --stand-by a call waits while another one runs the slot, and takes over if that crashes.

COMMAND runs under the lock NAME, as under dibs run: it is ended before somebody else can hold the
lock. It finds DIBS_SLOT and DIBS_ATTEMPT in its environment, besides what dibs run gives it.

TIME is in seconds, or has a unit: 500ms, 90s, 5m, 2h, 1d.

Exit codes: COMMAND's own, or 0 if there was nothing to do; 128+n if signal n ended it, or the wait;
76 the lease was lost; 124 --max-hold was reached; 64 wrong usage; 69 the store is not available;
126 COMMAND cannot be run; 127 COMMAND was not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dibs.cli.lines import say
from dibs.cli.nesting import refuse_to_wait_for_ourselves
from dibs.cli.options import add_common, seconds, whole
from dibs.cli.outcome import RunOutcome
from dibs.cli.running import add_command, add_grace, command_of, grace_of, supervised
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.watch import OnLost, RunWatch
from dibs.cli.where import connected
from dibs.core.client import DEFAULT_TTL
from dibs.errors import DibsError, LeaseLost, Misuse, Skipped
from dibs.runtime.clock import boot_time

if TYPE_CHECKING:
    from dibs import Client, Once, Run

USAGE = "dibs once [OPTIONS] NAME -- COMMAND [ARGUMENT...]\n       dibs once [OPTIONS] NAME -c STRING"


class CommandFailed(Exception):
    """The slot did not end well; this is what is remembered of it."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"it exited with {exit_code}")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs once` takes before the ``--``."""
    parser.add_argument("name", metavar="NAME", help="what is run: any text")
    parser.add_argument("--cron", metavar="LINE", help="the slots of a cron expression, such as '0 3 * * *'")
    parser.add_argument("--tz", default="UTC", metavar="ZONE", help="the time zone of --cron (UTC)")
    parser.add_argument("--every", type=seconds, metavar="TIME", help="a slot for each TIME, such as 15m")
    parser.add_argument("--slot", metavar="TEXT", help="this slot")
    parser.add_argument("--retries", type=whole, default=0, metavar="N", help="start a slot up to N times more (0)")
    parser.add_argument(
        "--stand-by", action="store_true", help="wait while another call runs the slot, and take over if that crashes"
    )
    parser.add_argument("--late", type=seconds, metavar="TIME", help="a slot may begin up to TIME after its moment")
    parser.add_argument("--min-hold", type=seconds, metavar="TIME", help="begin no other slot within TIME of this one")
    parser.add_argument("--max-hold", type=seconds, metavar="TIME", help="end COMMAND after this time")
    parser.add_argument(
        "--ttl", type=seconds, default=DEFAULT_TTL, metavar="TIME", help=f"how long a lease lasts ({DEFAULT_TTL:g}s)"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say why there is nothing to do")
    add_command(parser)
    add_grace(parser)
    add_common(parser)


def main(args: argparse.Namespace, command: Sequence[str] | None) -> int:
    """Do it. *command* is what stood after the ``--``; None if there was none."""
    command, grace = command_of(args, command, "once"), grace_of(args)
    if sum(each is not None for each in (args.slot, args.cron, args.every)) != 1:
        raise Misuse("give exactly one of --slot, --cron and --every: it says what is to be done once")
    outcome = RunOutcome("once", args.name)
    with Signals() as signals, connected(args) as client:
        once = _once(client, args)
        run = _begun(client, once, signals, outcome, verbose=args.verbose)
        if run is not None:
            watch = RunWatch(OnLost.TERM, grace, args.max_hold, boot_time())
            more = {"DIBS_SLOT": run.slot, "DIBS_ATTEMPT": str(run.attempt)}
            supervised(args, command, watch, client, run.lease, signals, outcome, more)
            _end(once, outcome)
    return outcome.report(json=args.json)


def _once(client: Client, args: argparse.Namespace) -> Once:
    return client.once(
        args.name,
        slot=args.slot,
        cron=args.cron,
        every=args.every,
        tz=args.tz,
        ttl=args.ttl,
        timeout=None if args.stand_by else 0,
        retries=args.retries,
        min_hold=args.min_hold,
        late=args.late,
    )


def _begun(client: Client, once: Once, signals: Signals, outcome: RunOutcome, *, verbose: bool) -> Run | None:
    """Take the slot; None if there is nothing to do, or it failed, and *outcome* knows why."""
    try:
        with signals.raised():
            refuse_to_wait_for_ourselves(client, once.name)
            run = once.__enter__()
    except Interrupted as signal:
        outcome.interrupted(signal)
    except Skipped as skipped:
        outcome.skipped(skipped, verbose=verbose)
    except DibsError as error:
        outcome.failed(error)
    else:
        outcome.begun(run.slot, run.attempt, run.lease.fence)
        return run
    return None


def _end(once: Once, outcome: RunOutcome) -> None:
    """Write down how it ended, and give the name back."""
    failed = CommandFailed(outcome.exit) if outcome.exit else None
    try:
        once.__exit__(type(failed) if failed else None, failed, None)
    except LeaseLost as error:
        outcome.lost(error, counts=True)
    for note in getattr(failed, "__notes__", ()):
        say(note)
