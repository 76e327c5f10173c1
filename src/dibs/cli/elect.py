"""Run a command as long as we are the leader: one candidate leads, the others stand by.

  dibs elect scheduler --restart -- ./scheduler
  dibs elect --candidate web-3 --ttl 10s cache-warmer -- ./warm.sh

Waits until we lead NAME, runs COMMAND, gives up the lead when COMMAND has ended, and exits with
COMMAND's exit code. With --restart it stands as a candidate again whenever COMMAND has ended or the
term was lost, until it gets TERM, INT or QUIT. Signals are passed on as by dibs run.

The lease is renewed as long as COMMAND runs. If that fails, COMMAND gets TERM --grace seconds before
the lease ends and KILL before it has ended, so that no two lead at once. After an eviction (dibs
evict) it gets TERM at once and KILL after --grace. If dibs itself is killed, the whole group is killed.

COMMAND finds the same variables in its environment as under dibs run; DIBS_FENCE is the number of the term.
dibs show NAME says who leads.

TIME is in seconds, or has a unit: 500ms, 90s, 5m, 2h, 1d.

Exit codes: COMMAND's own; 128+n if signal n ended it, or the wait; 76 the term was lost; 64 wrong
usage; 69 the store is not available (with --restart it is tried again); 126 COMMAND cannot be run;
127 COMMAND was not found.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence

from dibs.cli.exits import Exit
from dibs.cli.options import add_common, seconds
from dibs.cli.outcome import RunOutcome
from dibs.cli.running import acquired, add_command, add_grace, command_of, grace_of, guarded
from dibs.cli.signals import STOPPING, Interrupted, Signals
from dibs.cli.watch import OnLost, RunWatch
from dibs.cli.where import connected
from dibs.core.client import DEFAULT_TERM
from dibs.holder import LEADS
from dibs.runtime.clock import boot_time

USAGE = "dibs elect [OPTIONS] NAME -- COMMAND [ARGUMENT...]\n       dibs elect [OPTIONS] NAME -c STRING"

HOPELESS = {Exit.USAGE, Exit.CANNOT_EXEC, Exit.NOT_FOUND, Exit.BUG}
"""What another try would end with too."""

FROM_THE_KEYBOARD = {Exit.SIGNAL + signal.SIGINT, Exit.SIGNAL + signal.SIGQUIT}
"""A command in the foreground gets Ctrl-C from the terminal itself, and we do not."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs elect` takes before the ``--``."""
    parser.add_argument("name", metavar="NAME", help="what to lead: any text")
    parser.add_argument("--restart", action="store_true", help="stand again when COMMAND ended or the term was lost")
    parser.add_argument("--candidate", metavar="TEXT", help="what to call ourselves (HOST:PID)")
    parser.add_argument(
        "--ttl", type=seconds, default=DEFAULT_TERM, metavar="TIME", help=f"how long a lease lasts ({DEFAULT_TERM:g}s)"
    )
    add_command(parser)
    add_grace(parser)
    add_common(parser)


def main(args: argparse.Namespace, command: Sequence[str] | None) -> int:
    """Do it. *command* is what stood after the ``--``; None if there was none."""
    command, grace = command_of(args, command, "elect"), grace_of(args)
    note = LEADS + (args.candidate or f"{os.uname().nodename}:{os.getpid()}")
    with Signals() as signals, connected(args) as client:
        lock = client.lock(args.name, ttl=args.ttl, note=note)
        while True:
            outcome = RunOutcome("elect", args.name)
            lease = acquired(client, lock, None, signals, outcome)
            if lease is not None:
                guarded(args, command, RunWatch(OnLost.TERM, grace, None, boot_time()), client, lease, signals, outcome)
            code = outcome.report(json=args.json)
            if not args.restart or _is_the_end(outcome, signals):
                return code
            if (interrupted := _paused(args.ttl, signals)) is not None:
                return interrupted


def _is_the_end(outcome: RunOutcome, signals: Signals) -> bool:
    """Whether we were told to stop, or another try would end as this one did."""
    if not outcome.ran:
        return outcome.signal is not None or outcome.exit in HOPELESS
    return bool(signals.seen & STOPPING) or outcome.exit in FROM_THE_KEYBOARD or _hung_up(outcome, signals)


def _hung_up(outcome: RunOutcome, signals: Signals) -> bool:
    """Whether the command ended with its terminal. Where it lives on, HUP only told it to read its settings."""
    return outcome.signal == signal.SIGHUP and signal.SIGHUP in signals.seen


def _paused(ttl: float, signals: Signals) -> int | None:
    """Let others have a chance, and not all candidates come back at once; the exit code if a signal ended it."""
    import random  # noqa: PLC0415 - 3 ms, and rarely needed

    try:
        with signals.raised():
            time.sleep(min(2.0, ttl / 7.5) * random.uniform(0.5, 1.5))
    except Interrupted as interrupted:
        return interrupted.exit
    return None
