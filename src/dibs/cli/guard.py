"""A second process that kills the command's whole group if `dibs run` itself is killed.

The kernel can kill one child with its parent (PR_SET_PDEATHSIG, see `child`), but not the children's children, and
only on Linux. So a small shell waits at a pipe whose other end only we hold. The command writes its group there
before it becomes the command, so there is no moment in which it runs unguarded; we say goodbye when it has ended.
If the pipe ends without a goodbye, we are dead, and the group is killed.

A shell, because a second Python would cost ten times the memory for as long as the command runs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

SCRIPT = """\
trap '' HUP INT QUIT TERM USR1 USR2 TSTP TTIN TTOU
read -r group && [ "$group" != goodbye ] || exit 0
read -r goodbye && exit 0
kill -s KILL -- "-$group"
"""
"""It has inherited what keeps the lock taken, and ends after the kill: nobody gets the lock before."""


class GuardProcess:
    """The guarding process, from before the command starts until after it ended."""

    def __init__(self, keep: Sequence[int]) -> None:
        """Start it; *keep* are the file descriptors that keep the lock taken. OSError where there is no shell."""
        listens, self._speaks = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "dibs-guard"],
                stdin=listens,
                stdout=subprocess.DEVNULL,  # it must not hold the user's pipes open, nor a mounted directory
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
                pass_fds=keep,
                start_new_session=True,  # no terminal, and no group, whose signals it would get
            )
        except OSError:
            os.close(self._speaks)
            raise
        finally:
            os.close(listens)

    def watch_this_process(self) -> None:
        """Name this process's group as the one to kill. The command calls it, just before it is executed."""
        self._say(f"{os.getpid()}\n")

    def dismiss(self) -> None:
        """Say goodbye: the group has ended, or may go on by itself."""
        self._say("goodbye\n")
        os.close(self._speaks)
        self._process.wait()

    def _say(self, text: str) -> None:
        try:
            os.write(self._speaks, text.encode())
        except BrokenPipeError:
            return  # somebody killed the guard: the command itself still dies with us on Linux
