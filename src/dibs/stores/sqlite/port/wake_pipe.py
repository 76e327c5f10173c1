"""Bells: one named pipe for each ask that waits, rung by whoever frees its lock.

A bell is a hint. It costs the one who rings one byte and wakes exactly one waiter; it cannot be rung if nobody
lives who would hear it, and that is how the dead are found.
"""

from __future__ import annotations

import contextlib
import errno
import os


class Bell:
    """A named pipe that its owner also holds open for writing, so that it never reads as ended."""

    __slots__ = ("fd", "name")

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, name)
        os.mkfifo(path, 0o600)
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except BaseException:
            os.unlink(path)
            raise
        self.name = name

    def hush(self) -> None:
        """Forget that it was rung."""
        if self.fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.read(self.fd, 4096)

    def end(self) -> None:
        """Wake whoever listens, for the last time. It is closed when nobody refers to it any more.

        Not now: another thread may be about to read, and the number may be another file's by then.
        """
        with contextlib.suppress(BlockingIOError):
            os.write(self.fd, b"!")

    def leave_to_parent(self) -> None:
        """In a forked child: close it at once; who refers to it may be a thread that is only in the parent."""
        fd, self.fd = self.fd, -1
        os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


class Bells:
    """The bells of one client, by the token of the ask that waits; used again when the ask is over."""

    def __init__(self, folder: str, process: str) -> None:
        self._folder, self._process, self._made = folder, process, 0
        self._idle: list[Bell] = []
        self._given: dict[str, Bell] = {}

    def __contains__(self, token: object) -> bool:
        return token in self._given

    def of(self, token: str) -> Bell | None:
        """The bell of an ask that waits, if it has one."""
        return self._given.get(token)

    def give(self, token: str) -> str | None:
        """The name of the bell for *token*; None if no more can be made: that waiter has to look for itself."""
        if token not in self._given:
            try:
                self._given[token] = self._idle.pop() if self._idle else self._make()
            except OSError:
                return None
        return self._given[token].name

    def take_back(self, token: str) -> None:
        """The ask is over. A ring that comes late only makes the next one look once in vain."""
        bell = self._given.pop(token, None)
        if bell is not None:
            bell.hush()
            self._idle.append(bell)

    def ring(self, name: str) -> bool:
        """Wake the owner of the bell *name*; tell whether there is one."""
        path = os.path.join(self._folder, name)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                self._remove(name)
            return exc.errno not in {errno.ENXIO, errno.ENOENT}
        try:
            os.write(fd, b"!")
        except BlockingIOError:
            pass  # full: it has been rung often enough
        except BrokenPipeError:
            return False
        finally:
            os.close(fd)
        return True

    def sweep(self, living: set[str]) -> None:
        """Delete the bells of those who are not among the *living*."""
        for name in os.listdir(self._folder):
            if name.partition(".")[0] not in living:
                self._remove(name)

    def end(self) -> None:
        """Delete all of ours."""
        for bell in self._ours():
            self._remove(bell.name)
            bell.end()

    def leave_to_parent(self) -> None:
        """In a forked child: close our copies, else the parent's bells would seem heard after its death."""
        for bell in self._ours():
            bell.leave_to_parent()

    def _ours(self) -> list[Bell]:
        ours = [*self._idle, *self._given.values()]
        self._idle, self._given = [], {}
        return ours

    def _make(self) -> Bell:
        self._made += 1
        return Bell(self._folder, f"{self._process}.{self._made}")

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder, name))
