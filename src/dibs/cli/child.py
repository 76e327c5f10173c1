"""The command as a process: how it is started, told and waited for.

It is executed without a shell in between, in a process group of its own, with all that we were given: standard
streams, terminal, directory, limits, and every other file descriptor (``<(…)`` of bash works).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dibs.cli.exits import Exit
from dibs.cli.guard import GuardProcess
from dibs.cli.terminal import Terminal

PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class CannotExecError(Exception):
    """The command could not be started; nothing of it has run."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"cannot run {command!r}: {error.strerror or error}")
        self.exit = Exit.NOT_FOUND if error.errno in {errno.ENOENT, errno.ENOTDIR} else Exit.CANNOT_EXEC


class Stopped(NamedTuple):
    """The command stands still, by Ctrl-Z or another signal."""

    signum: int


class Ended(NamedTuple):
    """The command has ended."""

    code: int
    """What it exited with, or minus the signal that ended it."""

    @property
    def exit(self) -> int:
        """The code to exit with on its behalf."""
        return self.code if self.code >= 0 else Exit.SIGNAL - self.code


class Child:
    """The running command."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.group = process.pid
        self.refused = False
        """Whether we were not allowed to signal it: it runs as another user now (sudo)."""

    def look(self) -> Stopped | Ended | None:
        """Tell what happened to it since the last look."""
        pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            return Stopped(os.WSTOPSIG(status))
        self._process.returncode = os.waitstatus_to_exitcode(status)  # or Popen complains when it is collected
        return Ended(self._process.returncode)

    def send(self, *signums: int) -> None:
        """Send to its whole group: to its children too."""
        try:
            for signum in signums:
                os.killpg(self.group, signum)
        except ProcessLookupError:
            return  # all have ended
        except PermissionError:
            self.refused = True

    def end_now(self) -> None:
        """Kill it and wait for it: whatever happens to us, it does not stay behind."""
        if self._process.returncode is None:
            self.send(signal.SIGKILL)
            self._process.wait()


def start(
    command: Sequence[str], env: Mapping[str, str], guard: GuardProcess | None, keep: Sequence[int], terminal: Terminal
) -> Child:
    """Execute *command*; `CannotExecError` if that fails. *keep* are the file descriptors that keep the lock taken."""
    foreground = terminal.alone()
    copies = [os.dup(fd) for fd in keep]  # the forked child's store closes the originals before it gets to `prepare`
    prepare = _preparation(guard, copies, terminal if foreground else None)
    try:
        with warnings.catch_warnings():
            # Python warns of code between fork and exec when there are threads. Ours is a few system calls.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = subprocess.Popen(
                command,
                env=env,
                close_fds=False,  # ours are all closed on exec; what is open was meant for the command
                process_group=0,
                preexec_fn=prepare,  # noqa: PLW1509 - see above
            )
    except OSError as error:
        if foreground:  # the failed child had taken it
            terminal.given = True
            terminal.take_back()
        raise CannotExecError(command[0], error) from error
    finally:
        for fd in copies:
            os.close(fd)
    terminal.given = foreground
    return Child(process)


def _preparation(guard: GuardProcess | None, keep: Sequence[int], terminal: Terminal | None) -> Callable[[], None]:
    """Make what the child does between fork and exec."""
    parent, die_with_parent = os.getpid(), _parent_death_signal()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:  # it died before that took effect
            os.kill(os.getpid(), signal.SIGKILL)
        if guard is not None:
            _guarded(guard)
        for fd in keep:
            os.set_inheritable(fd, True)
        if terminal is not None:  # here, so that the command cannot read the keyboard too early
            terminal.give(os.getpid())

    return prepare


def _guarded(guard: GuardProcess) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    guard.watch_this_process()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _parent_death_signal() -> Callable[[], object]:
    """Make a call by which this process will be killed when its parent dies; loaded before the fork."""
    if sys.platform != "linux":
        return lambda: None
    import ctypes  # noqa: PLC0415 - only where it is of use

    prctl = ctypes.PyDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
