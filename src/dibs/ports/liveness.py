"""Shows to other processes that this one lives: a file of its own, locked for as long as the process is there.

The kernel drops the lock when the last process that has the descriptor ends, however it ends; so a taker sees at
once that a holder is gone, without any heartbeat. The lock is `flock`: it belongs to the open file, not to the
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

    def alive(self, process: str) -> bool:
        """Whether the client with the liveness file *process* is still there."""
        return process == self.process or _locked(os.path.join(self._folder, process))

    def shown(self) -> bool:
        """Whether our file is still there for others to see."""
        return os.path.exists(os.path.join(self._folder, self.process))

    def sweep(self) -> set[str]:
        """Delete the files of the dead, and tell who lives. No name is used again: who came since is not hit."""
        living = set()
        for process in os.listdir(self._folder):
            if self.alive(process):
                living.add(process)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._folder, process))
        return living

    def end(self) -> None:
        """We are going: whatever we still hold is free, unless a child that inherited our descriptor goes on."""
        self._close()
        path = os.path.join(self._folder, self.process)
        if not _locked(path):
            with contextlib.suppress(OSError):
                os.unlink(path)

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


def _locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | _OPEN)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # no descriptor left, say: nobody is declared dead on a guess
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look at once must not see each other
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
