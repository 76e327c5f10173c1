"""A command under a lease: what is to be run, taking the lock for it, running it, and giving the lock back."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from dibs.cli.child import CannotExecError, start
from dibs.cli.guard import GuardProcess
from dibs.cli.lines import say
from dibs.cli.nesting import refuse_to_wait_for_ourselves
from dibs.cli.options import namespace_of, seconds
from dibs.cli.outcome import RunOutcome
from dibs.cli.signals import Interrupted, Signals
from dibs.cli.supervise import Ending, Supervision
from dibs.cli.terminal import Terminal
from dibs.cli.watch import OnLost, RunWatch
from dibs.cli.where import url_of
from dibs.errors import DibsError, LeaseLost, Misuse, StoreUnavailable
from dibs.runtime.clock import boot_time

if TYPE_CHECKING:
    from dibs import Client, Lease, Lock


def add_command(parser: argparse.ArgumentParser) -> None:
    """Declare what a verb takes that runs a command."""
    parser.add_argument("words", nargs="*", default=[], help=argparse.SUPPRESS)  # a forgotten -- is told as such
    parser.add_argument("-c", dest="string", metavar="STRING", help="run STRING with /bin/sh instead of COMMAND")


def add_grace(parser: argparse.ArgumentParser) -> None:
    """Declare how much time the command has to end."""
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="TIME",
        help="from TERM to KILL; less than 2/3 of the ttl (10s, or a third of the ttl if that is less)",
    )


def command_of(args: argparse.Namespace, command: Sequence[str] | None, verb: str) -> Sequence[str]:
    """Tell what to execute, or what is wrong with the call. *command* is what stood after the ``--``."""
    if args.words:
        raise Misuse(f"put -- before the command: dibs {verb} {args.name} -- {args.words[0]}; see dibs {verb} --help")
    if args.string is not None:
        if command is not None:
            raise Misuse(f"give a command after -- or a string with -c, not both; see dibs {verb} --help")
        return ["/bin/sh", "-c", args.string]
    if not command:
        raise Misuse(f"give the command after --: dibs {verb} {args.name} -- COMMAND; see dibs {verb} --help")
    return command


def grace_of(args: argparse.Namespace) -> float:
    """Tell how long before the end of the lease the command is asked to end."""
    if args.grace is None:
        return float(min(10.0, args.ttl / 3))
    if args.grace >= args.ttl * 2 / 3:
        raise Misuse(
            f"--grace {args.grace:g} must be less than two thirds of --ttl {args.ttl:g}: renewals begin when that is "
            "left, and must have had a chance before the command is asked to end"
        )
    return float(args.grace)


def acquired(client: Client, lock: Lock, timeout: float | None, signals: Signals, outcome: RunOutcome) -> Lease | None:
    """Take the lock; None if that failed, and *outcome* knows why."""
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


def guarded(
    args: argparse.Namespace,
    command: Sequence[str],
    watch: RunWatch,
    client: Client,
    lease: Lease,
    signals: Signals,
    outcome: RunOutcome,
) -> None:
    """Run the command and give the lock back."""
    try:
        supervised(args, command, watch, client, lease, signals, outcome)
    finally:
        left = lease.expires_in()
        try:
            lease.release()
        except LeaseLost as error:
            outcome.lost(error, counts=watch.on_lost is not OnLost.CONTINUE)
        except StoreUnavailable as error:
            outcome.not_given_back(error, left)


def supervised(
    args: argparse.Namespace,
    command: Sequence[str],
    watch: RunWatch,
    client: Client,
    lease: Lease,
    signals: Signals,
    outcome: RunOutcome,
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run the command under the lease, with *more* in its environment."""
    env = {**_environment(args, lease), **more}
    try:
        signals.stop_if_any()
        outcome.ended(_run(command, env, client.inheritable(), lease, watch, signals))
    except Interrupted as signal:
        outcome.interrupted(signal)
    except CannotExecError as error:
        outcome.cannot_exec(error)


def _run(
    command: Sequence[str],
    env: dict[str, str],
    keep: Sequence[int],
    lease: Lease,
    watch: RunWatch,
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


def _guard(keep: Sequence[int]) -> GuardProcess | None:
    try:
        return GuardProcess(keep)
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
