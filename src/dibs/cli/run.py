"""Run a command while holding a lock.

  dibs run nightly-report -- ./report.sh --all
  dibs run --no-wait --skip-ok backup -- tar -cf backup.tar data
  dibs run --timeout 5m db -c 'pg_dump shop | gzip > shop.gz'
  dibs run --slots 3 encoder -- ffmpeg -i in.mov out.mp4

Waits for the lock, runs COMMAND with it, gives it back when COMMAND has ended, and exits with COMMAND's
exit code. COMMAND gets our standard streams, terminal and open files, and runs in a process group of
its own. TERM, INT, HUP, QUIT, USR1, USR2 and WINCH are passed on to that group; they end the wait if
we still wait for the lock.

The lease is renewed as long as COMMAND runs. If that fails, COMMAND gets TERM --grace seconds before
the lease ends and KILL before it has ended, so that nobody else can hold the lock meanwhile. After an
eviction (dibs evict) it gets TERM at once and KILL after --grace. If dibs itself is killed, the whole
group is killed.

COMMAND finds DIBS_NAME, DIBS_NAMESPACE, DIBS_URL, DIBS_FENCE (pass it to what you write to) and
DIBS_TOKEN (for dibs check) in its environment.

TIME is in seconds, or has a unit: 500ms, 90s, 5m, 2h, 1d.

Exit codes: COMMAND's own; 128+n if signal n ended it; 75 somebody else holds the lock; 76 the lease
was lost; 124 --max-hold was reached; 64 wrong usage; 69 the store is not available; 126 COMMAND cannot
be run; 127 COMMAND was not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dibs.cli.options import add_asking, add_common, add_share, exit_code, lock_of, seconds, timeout_of, words
from dibs.cli.outcome import RunOutcome
from dibs.cli.running import acquired, add_command, add_grace, command_of, grace_of, guarded
from dibs.cli.signals import Signals
from dibs.cli.watch import OnLost, RunWatch
from dibs.cli.where import connected
from dibs.errors import Misuse
from dibs.runtime.clock import boot_time

USAGE = "dibs run [OPTIONS] NAME -- COMMAND [ARGUMENT...]\n       dibs run [OPTIONS] NAME -c STRING"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs run` takes before the ``--``."""
    parser.add_argument("name", metavar="NAME", help="what to lock: any text")
    add_asking(parser)
    add_share(parser)
    add_command(parser)
    parser.add_argument("--max-hold", type=seconds, metavar="TIME", help="end COMMAND after this time")
    add_grace(parser)
    parser.add_argument(
        "--on-lost",
        type=words(*(each.value for each in OnLost)),
        default="term",
        metavar="WHAT",
        help="term (as above), kill (no TERM before), or continue (only say it)",
    )
    parser.add_argument("-E", "--conflict-exit-code", type=exit_code, metavar="N", help="exit with N instead of 75")
    parser.add_argument("--skip-ok", action="store_true", help="exit with 0 instead of 75, and say nothing: for cron")
    add_common(parser)


def main(args: argparse.Namespace, command: Sequence[str] | None) -> int:
    """Do it. *command* is what stood after the ``--``; None if there was none."""
    command = command_of(args, command, "run")
    grace, timeout = grace_of(args), timeout_of(args)
    if args.skip_ok and args.conflict_exit_code is not None:
        raise Misuse("--skip-ok and --conflict-exit-code exclude each other; give one")
    outcome = RunOutcome("run", args.name)
    with Signals() as signals, connected(args) as client:
        lock = lock_of(args, client)
        lease = acquired(client, lock, timeout, signals, outcome)
        if lease is not None:
            watch = RunWatch(OnLost(args.on_lost), grace, args.max_hold, boot_time())
            guarded(args, command, watch, client, lease, signals, outcome)
    excuse = 0 if args.skip_ok else args.conflict_exit_code
    if excuse is not None:
        outcome.excused(excuse, silent=args.skip_ok)
    return outcome.report(json=args.json)
