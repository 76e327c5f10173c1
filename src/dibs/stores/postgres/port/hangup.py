"""Notices at once that the other side ended a connection, without reading what it sends meanwhile."""

from __future__ import annotations

import contextlib
import os
import select

HUNG_UP = getattr(select, "EPOLLRDHUP", 0) | getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class Tripwire:
    """Watches sockets. Its own descriptor *fd* can be read when one of them was ended, or after `wake`.

    An epoll descriptor is one that can itself be waited for: so one wait, in a thread or in an event loop, covers any
    number of sockets, and answers that come on them wake nobody here.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        try:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._epoll.close()
            raise
        self._epoll.register(self._bell, select.EPOLLIN)
        self.fd = self._epoll.fileno()

    @staticmethod
    def possible() -> bool:
        """Whether this system has what it takes. Else a heartbeat has to do."""
        return hasattr(select, "epoll") and hasattr(os, "eventfd")

    def watch(self, fd: int) -> None:
        """Watch a socket."""
        self._epoll.register(fd, HUNG_UP)

    def ended(self) -> list[int]:
        """The sockets that were ended; each is told once."""
        found = [fd for fd, _ in self._epoll.poll(0) if fd != self._bell]
        for fd in found:
            self.forget(fd)
        return found

    def forget(self, fd: int) -> None:
        """Do not watch a socket any more. Before it is closed: a child that inherited it would keep it watched."""
        with contextlib.suppress(OSError):  # it has been told already
            self._epoll.unregister(fd)

    def wake(self) -> None:
        """Wake whoever waits."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """Stop watching. In a forked child; elsewhere somebody may be waiting, so it ends when nobody refers to it."""
        bell, self._bell = self._bell, -1
        self._epoll.close()
        if bell >= 0:
            os.close(bell)

    def __del__(self) -> None:
        if getattr(self, "_bell", -1) >= 0:
            self.close()
