"""The queue of those who found the database busy: one at a time tries again, the others sleep in the kernel.

SQLite's own busy handler sleeps longer and longer, so whoever has waited long is ever less likely to hit the moment
when the lock is free: with four busy writers one waited 1.3 s and another got 50 times as many turns. With this gate
the worst wait was 18 ms, the shares were within 1.2 of each other, and the throughput was 0.8 of that without it.
To send every write through the gate is no fairer and costs the one who is alone two system calls; polling for the
gate with short sleeps needs no helper thread, but the worst wait is 50 ms.

The gate keeps order and nothing else. Its file is never what makes a write safe, so whoever does not get in (the one
inside may be stopped by a debugger) goes on without it.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time

WITHOUT_HELPER = 0.002
"""Seconds between two tries of one that cannot queue, since no thread can be started."""


class Gate:
    """A lock file with a timeout, which `flock` does not have: a helper thread, made at need, blocks in its place.

    Nothing here is taken in Python code, as the parts of `threading` are that are made of a `threading.Condition`:
    Ctrl-C between the taking and the ``with`` would leave it taken for ever, and the next to enter would hang.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._state = threading.Lock()
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._helper: threading.Thread | None = None
        self._pending = False  # the helper is in line; it may have been left there by one who gave up
        self._bed: threading.Lock | None = None  # where somebody sleeps who will take over what the helper gets
        self._ours = False  # the helper got it for us
        self._ended = False

    def enter(self, timeout: float) -> bool:
        """Get in within *timeout* seconds, or tell that we did not."""
        try:
            return self._enter(timeout)
        except BaseException:  # Ctrl-C: nobody sleeps here any more, and what the helper got meanwhile is let go
            self._rise()
            self.leave()
            raise

    def leave(self) -> None:
        """Let the next one in."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def end(self) -> None:
        """Close the file; a helper that is still in line does it when its turn comes."""
        with self._state:
            self._ended = True
            if not self._pending:
                os.close(self._fd)
        self._asked.put(None)

    def leave_to_parent(self) -> None:
        """In a forked child, where the helper does not exist: close our copy and do not unlock it."""
        os.close(self._fd)

    def _enter(self, timeout: float) -> bool:
        with self._state:
            if not self._pending:
                if self._try():
                    return True
                if not self._send():
                    return False
            bed = self._bed = threading.Lock()
            bed.acquire()
        bed.acquire(timeout=timeout)
        return self._rise()

    def _rise(self) -> bool:
        """From now on nobody sleeps; tell whether the helper got in for us."""
        with self._state:
            self._bed, entered, self._ours = None, self._ours, False
        return entered

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _send(self) -> bool:
        """Let the helper stand in line; False if there can be none."""
        if self._helper is None:
            helper = threading.Thread(target=self._stand_in_line, name="dibs sqlite gate", daemon=True)
            try:
                helper.start()
            except RuntimeError:
                time.sleep(WITHOUT_HELPER)
                return False
            self._helper = helper
        self._pending = True
        self._asked.put(None)
        return True

    def _stand_in_line(self) -> None:
        while True:
            self._asked.get()
            if not self._pending:
                return  # end() woke us
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            with self._state:
                bed, self._bed, self._pending = self._bed, None, False
                if bed is not None:
                    self._ours = True
                    bed.release()
                else:
                    self.leave()
                if self._ended:
                    os.close(self._fd)
                    return
