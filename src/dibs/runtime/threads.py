"""The runtime of blocking code: every await is a plain call that returns when it is done."""

from __future__ import annotations

import contextlib
import os
import random
import select
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dibs.errors import Misuse, StoreUnavailable
from dibs.runtime import lifetime
from dibs.runtime.clock import boot_time
from dibs.runtime.run import run
from dibs.runtime.runtime import Driver

T = TypeVar("T")


class ThreadEvent:
    """A flag to wait for, made so that Ctrl-C at any moment of it leaves it in order.

    `threading.Event` is not: its lock is taken in Python code, and an interrupt between the taking and the ``with``
    leaves it taken for ever, so that the next `set` hangs. Here nothing is ever held: each waiter sleeps on a lock of
    its own, and puts it in the list before it looks at the flag; `set` raises the flag before it looks at the list.
    """

    __slots__ = ("_flag", "_waiting")

    def __init__(self) -> None:
        self._flag = False
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""
        return self._flag

    def clear(self) -> None:
        """Lower the flag."""
        self._flag = False

    def set(self) -> None:
        """Raise the flag and wake all who wait for it."""
        self._flag = True
        for bed in self._waiting[:]:
            with contextlib.suppress(RuntimeError):  # somebody else has woken it
                bed.release()

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most *timeout* seconds; tell whether it is."""
        if not self._flag and (timeout is None or timeout > 0):
            bed = threading.Lock()
            bed.acquire()
            self._waiting.append(bed)
            try:
                if not self._flag:
                    bed.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))
            finally:
                self._waiting.remove(bed)
        return self._flag


class ThreadJob:
    """A daemon thread: it never keeps the interpreter from ending."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._thread = threading.Thread(target=lambda: run(main()), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as exc:  # the limit of threads, or of memory
            raise StoreUnavailable(
                "behind this client",
                f"no thread can be started for it ({name}: {exc}); nothing is held. Let this process have more threads "
                "(ulimit -u, or pids.max of its control group), or end some",
            ) from exc

    async def join(self, timeout: float) -> None:
        """Wait until the thread has ended, at most *timeout* seconds."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def _refuse_eventlet() -> None:
    """Refuse eventlet: a wait for a file or a server stops all of its green threads, and so all renewals."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        raise Misuse(
            "eventlet has replaced the threads of this process with green threads, which all stand still while a lock "
            "waits for its server, so that no lease is renewed: use real threads "
            "(eventlet.monkey_patch(thread=False), or another kind of worker) or asyncio"
        )


class _Here(threading.local):
    """One object per thread: thread ids are reused, these are not."""

    def __init__(self) -> None:
        self.thread = object()


_here = _Here()


class ThreadRuntime:
    """Time and concurrency by the operating system's threads."""

    blocking = True
    driver = Driver.BLOCKING

    def __init__(self) -> None:
        _refuse_eventlet()
        self.now = boot_time
        self._chance = random.Random()  # not the program's own, which may begin alike in every process
        self.random = self._chance.random
        self.pid = os.getpid
        lifetime.after_fork(self._forked)

    def token(self) -> str:
        """128 random bits from the operating system: no two grants ever share it, forked children included."""
        return os.urandom(16).hex()

    def current(self) -> object:
        """The thread we are in."""
        return _here.thread

    def enter(self) -> None:
        """Blocking clients can be used from every thread.

        When the interpreter ends, a daemon thread stands still here, as it soon will everywhere: its clients are
        closed under it, and there is nobody left to tell.
        """
        lifetime.look()
        if lifetime.ending() and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()

    def mutex(self) -> AbstractContextManager[Any]:
        """A lock of `threading`; one that a signal handler may take again, in the middle of the thread's own step."""
        return threading.RLock()

    def event(self) -> ThreadEvent:
        """An event that threads wait for."""
        return ThreadEvent()

    async def sleep(self, seconds: float) -> None:
        """Block this thread for *seconds*."""
        time.sleep(seconds)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> ThreadJob:
        """Start *main* in a daemon thread."""
        return ThreadJob(main, name)

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """None: in threads a loss is read from the clock at the moment of use."""

    def interrupt(self) -> None:
        """None: nothing is ever raised into a running thread."""

    async def shielded(self, work: Awaitable[T]) -> T:
        """Just do it: threads have no cancel."""
        return await work

    async def readable(self, fd: int, timeout: float) -> bool:
        """Block until *fd* can be read."""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def after_fork(self, call: Callable[[], None]) -> None:
        """Do *call* in forked children."""
        lifetime.after_fork(call)

    def when_loop_closes(self, call: Callable[[], None]) -> Callable[[], None]:
        """There is none."""
        return lambda: None

    def end_process(self, why: str) -> None:
        """End it, whatever its threads do."""
        lifetime.end_now(why)

    def at_exit(self, call: Callable[[], None]) -> None:
        """Do *call* when the interpreter ends."""
        lifetime.at_exit(call)

    def _forked(self) -> None:
        self._chance.seed()  # else all children would choose the same moments
