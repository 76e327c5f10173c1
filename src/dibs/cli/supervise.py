"""Stays with a running command until it has ended: passes signals on, and ends it when its lease or time is over."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dibs.cli.child import Child, Ended, Stopped
from dibs.cli.lines import say_at_once
from dibs.cli.signals import Signals
from dibs.cli.terminal import Terminal, stop_like
from dibs.cli.watch import Cause, Do, RunWatch
from dibs.errors import LeaseLost, StoreUnavailable
from dibs.runtime.clock import boot_time

if TYPE_CHECKING:
    from dibs import Lease

WANTS_THE_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
"""What stops a process that reads or changes the terminal from the background."""

NOBODY_STOPPED_US = 0.05
"""Seconds: if we stood still for less, the kernel had dropped the signal (see `stop_like`)."""


class Ending(NamedTuple):
    """How the command ended."""

    code: int
    """What it exited with, or minus the signal that ended it."""
    exit: int
    """The same as a shell says it."""
    cause: Cause | None
    """Why we ended it; None if it ended by itself."""


class Supervision:
    """One command, the lease it runs under, and the terminal it was given."""

    def __init__(self, child: Child, lease: Lease, watch: RunWatch, signals: Signals, terminal: Terminal) -> None:
        self._child, self._lease, self._watch = child, lease, watch
        self._signals, self._terminal = signals, terminal
        self._told_loss = self._told_refusal = False

    def until_the_end(self) -> Ending:
        """Return when the command has ended."""
        try:
            while not isinstance(happened := self._child.look(), Ended):
                if happened is not None:
                    self._stopped(happened)
                self._child.send(*self._signals.take())
                self._judge()
                self._signals.wait(self._watch.nap(boot_time()))
        finally:
            self._terminal.take_back()
        if self._watch.cause is not None:
            self._child.send(signal.SIGKILL)  # what is left of its group had been asked to end too
        return Ending(happened.code, happened.exit, self._watch.cause)

    def _judge(self) -> Do:
        """Do what is due. First the signal, then the line about it: writing may take as long as it likes."""
        lost = bool(self._lease.lost)
        do = self._watch.look(boot_time(), self._lease.expires_in(), lost)
        if do is Do.TERM:
            self._child.send(signal.SIGTERM, signal.SIGCONT)  # a stopped process hears nothing
        elif do is Do.KILL:
            self._child.send(signal.SIGKILL)
        self._tell(do, lost)
        return do

    def _tell(self, do: Do, lost: bool) -> None:
        if do is not Do.NOTHING and self._child.refused and not self._told_refusal:
            self._told_refusal = True
            say_at_once("the command runs as another user and cannot be ended from here: end it yourself")
        if do is Do.NOTHING and (not lost or self._told_loss):
            return
        self._told_loss = self._told_loss or lost
        say_at_once(self._news(do))

    def _news(self, do: Do) -> str:
        name, reason = self._lease.name, self._lease.lost_reason
        then = {Do.TERM: "asking the command to end", Do.KILL: "killing the command"}.get(do, "the command goes on")
        if reason is not None:
            return f"the lease on {name!r} was lost ({reason}): {then}"
        if self._watch.cause is Cause.MAX_HOLD:
            return f"the command has held {name!r} for --max-hold: {then}"
        return f"the lease on {name!r} cannot be renewed and ends in {self._lease.expires_in():.1f} s: {then}"

    def _stopped(self, stopped: Stopped) -> None:
        """The command stands still: because it wants the terminal, by Ctrl-Z, or because somebody stopped it."""
        if stopped.signum in WANTS_THE_TERMINAL and self._terminal.ours():
            self._go_on()
        elif stopped.signum in WANTS_THE_TERMINAL or self._terminal.given:
            self._stop_too(stopped.signum)
        # Else: somebody's kill -STOP. The lock stays taken, for whoever sends CONT.

    def _stop_too(self, signum: int) -> None:
        """Give the terminal to the shell and stand still until ``fg`` or ``bg``."""
        self._terminal.take_back()
        before = boot_time()
        stop_like(signum)
        if boot_time() - before < NOBODY_STOPPED_US:
            self._signals.wait(0.5)  # the command may stop again at once, and so on
        with suppress(LeaseLost, StoreUnavailable):  # lost: seen below; unreachable: it counts for as long as it lasts
            self._lease.renew()
        if self._judge() is Do.NOTHING:
            self._go_on()

    def _go_on(self) -> None:
        if self._terminal.ours():
            self._terminal.give(self._child.group)
        self._child.send(signal.SIGCONT)
