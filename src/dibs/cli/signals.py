"""Which signals `dibs` passes on, and how it hears of them without losing one.

A handler only notes what came and wakes the loop, through a pipe, so that nothing happens between two lines that
did not expect it. The one exception is the wait for a lock: there the signal is raised, as Ctrl-C is, and the
library gives back whatever was asked for.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from dibs.cli.exits import Exit

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""They end a process that does not expect them, and so they end our wait."""

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
"""They are sent to end a service, and so it is not started again; HUP may only tell it to read its settings."""

FORWARDED = (*ENDING, signal.SIGWINCH)
"""What the command gets to hear when we do. The size of a window is no reason to stop waiting."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the wait."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit(self) -> int:
        """The code to exit with."""
        return Exit.SIGNAL + self.signum


class Signals:
    """Catches them while it is entered.

    What was ignored when we started stays ignored, for us and for the command: that is how nohup and ``&`` work.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self.seen: set[int] = set()
        """All that ever came, passed on or not."""
        self._raising = False
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._bell = self._rope = -1

    def __enter__(self) -> Self:
        """Begin to catch."""
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._wakeup_before = signal.set_wakeup_fd(self._rope, warn_on_full_buffer=False)
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._handle)
        # Even where it was ignored: a child of a process that ignores it cannot be waited for.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Put everything back."""
        for signum, before in self._before.items():
            signal.signal(signum, signal.SIG_DFL if before is None else before)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._bell)
        os.close(self._rope)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """While inside, one that ends is raised as `Interrupted`; so is one that came before."""
        self.stop_if_any()
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def stop_if_any(self) -> None:
        """Raise `Interrupted` if one came that ends."""
        for signum in self._came:
            if signum in ENDING:
                raise Interrupted(signum)

    def take(self) -> list[int]:
        """Return those that came since the last time, in order."""
        came, self._came = self._came, []
        return came

    def wait(self, seconds: float) -> None:
        """Wait until one comes, or a child changes, at most *seconds*."""
        if not self._came and select.select([self._bell], [], [], seconds)[0]:
            os.read(self._bell, 4096)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        self.seen.add(signum)
        if self._raising and signum in ENDING:
            self._raising = False  # once: what is being given back must not be interrupted too
            raise Interrupted(signum)
        if signum != signal.SIGCHLD:
            self._came.append(signum)
