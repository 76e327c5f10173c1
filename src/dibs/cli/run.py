"""Run a command while holding a lock.

  dibs run nightly-report -- ./report.sh --all
  dibs run --no-wait --skip-ok backup -- tar -cf backup.tar data
  dibs run --timeout 5m db -c 'pg_dump shop | gzip > shop.gz'

Waits for the lock, runs COMMAND with it, gives it back when COMMAND has ended, and exits with what
COMMAND exited with. COMMAND gets our standard streams, terminal and open files, and runs in a process
group of its own. TERM, INT, HUP, QUIT, USR1, USR2 and WINCH are passed on to that group; while we
still wait for the lock they end the wait.

The lease is renewed as long as COMMAND runs. If that fails, COMMAND gets TERM --grace seconds before
the lease ends and KILL before it has ended, so that nobody else can hold the lock meanwhile. If
somebody broke the lock, it gets TERM at once and KILL after --grace. If dibs itself is killed, the
whole group is killed.

COMMAND finds DIBS_NAME, DIBS_NAMESPACE, DIBS_URL, DIBS_FENCE (pass it to what you write to) and
DIBS_TOKEN (for dibs check) in its environment.

TIME is in seconds, or has a unit: 500ms, 90s, 5m, 2h, 1d.

Exit codes: COMMAND's own; 128+n if signal n ended it; 75 somebody else holds the lock; 76 the lease
was lost; 124 --max-hold was reached; 64 wrong usage; 69 the store is not available; 126 COMMAND cannot
be run; 127 COMMAND was not found.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dibs.cli.child import CannotExecError, start
from dibs.cli.guard import Guard
from dibs.cli.lines import say
from dibs.cli.nesting import refuse_to_wait_for_ourselves
from dibs.cli.options import add_asking, add_common, exit_code, namespace_of, seconds, timeout_of, words
from dibs.cli.outcome import Outcome
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.supervise import Ending, Supervision
from dibs.cli.terminal import Terminal
from dibs.cli.watch import OnLost, Watch
from dibs.cli.where import connected, url_of
from dibs.errors import DibsError, LeaseLost, Misuse, StoreUnavailable
from dibs.runtime.clock import boot_time

if TYPE_CHECKING:
    from dibs import Client, Lease, Lock

USAGE = "dibs run [OPTIONS] NAME -- COMMAND [ARGUMENT...]\n       dibs run [OPTIONS] NAME -c STRING"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `dibs run` takes before the ``--``."""
    parser.add_argument("name", metavar="NAME", help="what to lock: any text")
    parser.add_argument("words", nargs="*", default=[], help=argparse.SUPPRESS)  # a forgotten -- is told as such
    add_asking(parser)
    parser.add_argument("-c", dest="string", metavar="STRING", help="run STRING with /bin/sh instead of COMMAND")
    parser.add_argument("--max-hold", type=seconds, metavar="TIME", help="end COMMAND after so long")
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="TIME",
        help="from TERM to KILL; less than 2/3 of the ttl (10s, or a third of the ttl if that is less)",
    )
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
    command = _command(args, command)
    grace, timeout = _grace(args), timeout_of(args)
    if args.skip_ok and args.conflict_exit_code is not None:
        raise Misuse("--skip-ok and --conflict-exit-code exclude each other; give one")
    outcome = Outcome(args.name)
    with Signals() as signals, connected(args) as client:
        lock = client.lock(args.name, ttl=args.ttl, note=args.note)
        lease = _acquired(client, lock, timeout, signals, outcome)
        if lease is not None:
            _guarded(args, command, grace, client, lease, signals, outcome)
    excuse = 0 if args.skip_ok else args.conflict_exit_code
    if excuse is not None:
        outcome.excused(excuse, silent=args.skip_ok)
    return outcome.report(json=args.json)


def _command(args: argparse.Namespace, command: Sequence[str] | None) -> Sequence[str]:
    """Tell what to execute, or what is wrong with the call."""
    if args.words:
        raise Misuse(f"put -- before the command: dibs run {args.name} -- {args.words[0]}; see dibs run --help")
    if args.string is not None:
        if command is not None:
            raise Misuse("give a command after -- or a string with -c, not both; see dibs run --help")
        return ["/bin/sh", "-c", args.string]
    if not command:
        raise Misuse(f"give the command after --: dibs run {args.name} -- COMMAND; see dibs run --help")
    return command


def _grace(args: argparse.Namespace) -> float:
    """Tell how long before the end of the lease the command is asked to end."""
    if args.grace is None:
        return float(min(10.0, args.ttl / 3))
    if args.grace >= args.ttl * 2 / 3:
        raise Misuse(
            f"--grace {args.grace:g} must be less than two thirds of --ttl {args.ttl:g}: renewals begin when that is "
            "left, and must have had a chance before the command is asked to end"
        )
    return float(args.grace)


def _acquired(client: Client, lock: Lock, timeout: float | None, signals: Signals, outcome: Outcome) -> Lease | None:
    started_at = boot_time()
    try:
        with signals.raised():
            refuse_to_wait_for_ourselves(client, lock.name)
            lease = lock.acquire(timeout=timeout)
    except Interrupted as signal:
        outcome.interrupted(signal)
    except DibsError as error:
        outcome.failed(error)
    else:
        outcome.acquired(lease.fence, boot_time() - started_at)
        return lease
    return None


def _guarded(
    args: argparse.Namespace,
    command: Sequence[str],
    grace: float,
    client: Client,
    lease: Lease,
    signals: Signals,
    outcome: Outcome,
) -> None:
    """Run the command and give the lock back."""
    watch = Watch(OnLost(args.on_lost), grace, args.max_hold, boot_time())
    try:
        signals.stop_if_any()
        outcome.ended(_run(command, _environment(args, lease), client.inheritable(), lease, watch, signals))
    except Interrupted as signal:
        outcome.interrupted(signal)
    except CannotExecError as error:
        outcome.cannot_exec(error)
    finally:
        left = lease.expires_in()
        try:
            lease.release()
        except LeaseLost as error:
            outcome.lost(error, counts=OnLost(args.on_lost) is not OnLost.CONTINUE)
        except StoreUnavailable as error:
            outcome.not_given_back(error, left)


def _run(
    command: Sequence[str],
    env: dict[str, str],
    keep: Sequence[int],
    lease: Lease,
    watch: Watch,
    signals: Signals,
) -> Ending:
    """Run the command; *keep* are the file descriptors that keep the lock taken as long as it lives."""
    terminal, guard = Terminal(), _guard(keep)
    try:
        child = start(command, env, guard, keep, terminal)
        try:
            return Supervision(child, lease, watch, signals, terminal).until_the_end()
        finally:
            child.end_now()
    finally:
        terminal.close()
        if guard is not None:
            guard.dismiss()


def _guard(keep: Sequence[int]) -> Guard | None:
    try:
        return Guard(keep)
    except OSError as error:
        say(f"no /bin/sh ({error.strerror}): if dibs is killed, children of the command will stay behind")
        return None


def _environment(args: argparse.Namespace, lease: Lease) -> dict[str, str]:
    return {
        **os.environ,
        "DIBS_NAME": lease.name,
        "DIBS_NAMESPACE": namespace_of(args),
        "DIBS_URL": url_of(args),
        "DIBS_FENCE": str(lease.fence),
        "DIBS_TOKEN": lease.to_str(),
    }
