"""Shows to other processes that this one lives: a file of its own, locked for as long as the process is there.

The kernel drops the lock when the last process that has the descriptor ends, however it ends; so a taker sees at
once that a holder is gone, without any heartbeat. Proof of death is a file that is there and not locked. A missing file
proves nothing, since programs that clean up delete what looks old. So what a client left behind is noted in the
database before its file is deleted. The lock is `flock`: it belongs to the open file, not to the
process, so opening and closing the same path elsewhere does not drop it (a POSIX lock would be dropped), and a child
that inherits the descriptor keeps it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


class Liveness:
    """The liveness file of one client in this process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.fd, self.process = _appear(folder)
        self._close = weakref.finalize(self, os.close, self.fd)  # for a client that is forgotten instead of closed
        self._close.atexit = False

    def dead(self, process: str) -> bool:
        """Whether the client with the liveness file *process* has certainly ended."""
        return process != self.process and _locked(os.path.join(self._folder, process)) is False

    def alive(self, process: str) -> bool:
        """Whether it certainly has not."""
        return process == self.process or _locked(os.path.join(self._folder, process)) is True

    def shown(self) -> bool:
        """Whether our file is still there for others to see; it also looks new, for those who delete what is old."""
        try:
            os.utime(os.path.join(self._folder, self.process), follow_symlinks=False)
        except OSError:
            return False
        return True

    def census(self) -> tuple[set[str], set[str]]:
        """Who lives, and who has left a file and is dead."""
        everybody = os.listdir(self._folder)
        dead = {process for process in everybody if self.dead(process)}
        return set(everybody) - dead, dead

    def forget(self, dead: set[str]) -> None:
        """Delete the files of the *dead*. No name is used again: a client that came since is not hit."""
        for process in dead:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, process))

    def end(self, *, leave_proof: bool) -> None:
        """We are going: whatever we still hold is free, unless a child that inherited our descriptor goes on.

        Our file is the proof of that; it is deleted if nothing needs to be proved.
        """
        self._close()
        if not leave_proof and _locked(os.path.join(self._folder, self.process)) is False:
            self.forget({self.process})

    def leave_to_parent(self) -> None:
        """In a forked child: close our copy. Unlocking, or deleting the file, would end the parent's life."""
        self._close()


def _appear(folder: str) -> tuple[int, str]:
    """Make a file, lock it, and only then give it its name: it is never seen unlocked."""
    while True:
        process = os.urandom(8).hex()
        fresh = os.path.join(folder, f"{process}.new")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(fresh, os.path.join(folder, process))
        except (BlockingIOError, FileNotFoundError):
            os.close(fd)  # a sweeper came between and took it for a dead one
        except BaseException:
            os.close(fd)
            raise
        else:
            return fd, process


def _locked(path: str) -> bool | None:
    """Whether somebody has it locked; None if there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | _OPEN)
    except FileNotFoundError:
        return None
    except OSError:
        return True  # no descriptor left, say: nobody is declared dead on a guess
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look at once must not see each other
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
