"""Who may read the keyboard and gets Ctrl-C: the terminal has one foreground group, and the command must be in it.

It is given at once when we seem to be alone with the terminal. In a pipeline (``dibs run x -- make | less``) the
others of our job need it too, so there the command gets it when it first asks: reading the keyboard from the
background stops it with SIGTTIN, which we see.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager


class Terminal:
    """The terminal that controls this process; where there is none, nothing is ever ours."""

    def __init__(self) -> None:
        self.given = False
        """Whether the command's group has it from us."""
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def ours(self) -> bool:
        """Whether our own group is in the foreground: we are not, after ``&`` or ``bg``."""
        return self._foreground() == os.getpgrp()

    def alone(self) -> bool:
        """Whether it can be given away at the start: nobody else of our job seems to need it."""
        return self.ours() and os.isatty(0) and not _is_pipe(1)

    def give(self, group: int) -> bool:
        """Bring *group* to the foreground; tell whether that worked."""
        self.given = self._set_foreground(group)
        return self.given

    def take_back(self) -> None:
        """Bring our own group to the foreground, if the command had it from us."""
        if self.given:
            self._set_foreground(os.getpgrp())
            self.given = False

    def close(self) -> None:
        """Let go of the terminal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self._fd)
        except OSError:
            return -1

    def _set_foreground(self, group: int) -> bool:
        try:
            with _background_may_write():
                os.tcsetpgrp(self._fd, group)
        except OSError:  # it hung up, or the group has ended
            return False
        return True


@contextmanager
def _background_may_write() -> Iterator[None]:
    """Ignore SIGTTOU, which stops whoever changes the terminal from the background."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTTOU, before)


def _is_pipe(fd: int) -> bool:
    try:
        mode = os.fstat(fd).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def stop_like(signum: int) -> None:
    """Stop our whole job, as the terminal would have with all of us in one group. Returns when it is continued.

    The others first, then this very thread: a signal to the process could reach another thread a moment later,
    and we would let the command go on before we stand still. In a job that nobody could continue (an orphaned
    group) the kernel drops these signals, and so we return at once; that is why SIGSTOP is not used.
    """
    signum = signal.SIGTSTP if signum == signal.SIGSTOP else signum
    before = signal.signal(signum, signal.SIG_IGN)
    os.kill(0, signum)
    signal.signal(signum, before)
    signal.pthread_kill(_this_thread(), signum)


def _this_thread() -> int:
    import threading  # noqa: PLC0415 - the library has loaded it by now

    return threading.get_ident()
