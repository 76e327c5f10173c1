"""The runtime of async code: tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dibs.errors import Misuse
from dibs.runtime import lifetime
from dibs.runtime.alarms import Alarm, Alarms
from dibs.runtime.clock import boot_time
from dibs.runtime.runtime import Driver

T = TypeVar("T")

GLANCE = 0.5
"""Seconds between two looks at whether the loop was closed."""


def _in_trio() -> bool:
    """Whether this is a task of trio, also below anyio. It is not imported for the question."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_task()


def why_no_loop() -> str:
    """What to do where asyncio runs no event loop."""
    if _in_trio():
        return (
            "dibs.aio needs asyncio, and this is a task of trio: run anyio on its asyncio backend, or use dibs, the "
            "blocking API, in trio.to_thread.run_sync"
        )
    return "dibs.aio needs a running event loop of asyncio; in blocking code use dibs"


class AsyncEvent:
    """An `asyncio.Event` that other threads may set."""

    __slots__ = ("_event", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._event = loop, asyncio.Event()

    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""
        return self._event.is_set()

    def clear(self) -> None:
        """Lower the flag."""
        self._event.clear()

    def set(self) -> None:
        """Raise the flag, now if called in the loop, else in its next turn."""
        if asyncio._get_running_loop() is self._loop:
            self._event.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most *timeout* seconds; tell whether it is."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._event.wait()
            except TimeoutError:
                pass
        return self._event.is_set()


class AsyncJob:
    """A task; the loop only keeps weak references to its tasks, so we keep a strong one."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def join(self, timeout: float) -> None:
        """Wait until the task has ended, at most *timeout* seconds."""
        await asyncio.wait([self._task], timeout=timeout)


class TaskInterrupt:
    """Cancels the body of an ``async with``, and knows its own cancel from another's (as `asyncio.timeout`)."""

    __slots__ = ("_before", "_fired", "_over", "_task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task, self._before = task, task.cancelling()
        self._fired = self._over = False

    def fire(self) -> None:
        """Cancel the task, once, if the body still runs.

        If the task itself is the one who found the loss, it is cancelled in the loop's next turn, at an await of the
        body. Before Python 3.13 a cancel that a task asks of itself cannot be taken back: if the body had no further
        await, it would come out of some innocent one behind the block.
        """
        if self._task.get_loop().is_closed():
            return  # nothing of the body runs any more
        if asyncio.current_task() is self._task:
            self._task.get_loop().call_soon(self._cancel)
        else:
            self._cancel()

    def absorb(self, exc: BaseException | None) -> bool:
        """Take our cancel back; tell whether *exc* is that cancel, and no one else cancelled the task too."""
        self._over = True
        if not self._fired:
            return False
        return self._task.uncancel() <= self._before and isinstance(exc, asyncio.CancelledError)

    def _cancel(self) -> None:
        if not self._fired and not self._over:
            self._fired = True
            self._task.cancel("the lease was lost")


class AsyncioRuntime:
    """Time and concurrency of one event loop: the one that is running at the first use."""

    blocking = False
    driver = Driver.ASYNCIO

    def __init__(self) -> None:
        self.now = boot_time
        self._chance = random.Random()  # not the program's own, which may begin alike in every process
        self.random = self._chance.random
        self.pid = os.getpid
        self._bound: asyncio.AbstractEventLoop | None = None
        lifetime.after_fork(self._forked)

    def token(self) -> str:
        """128 random bits from the operating system."""
        return os.urandom(16).hex()

    def current(self) -> object:
        """The task we are in."""
        return asyncio.current_task()

    def enter(self) -> None:
        """Refuse a second event loop: the keeper and the events of this client live in the first."""
        lifetime.look()
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise Misuse(why_no_loop()) from None
        if self._bound is not running:
            if _in_trio():  # as a guest of asyncio
                raise Misuse(why_no_loop())
            if self._bound is not None:
                raise Misuse(
                    "this async client belongs to another event loop; connect one in each loop, or use dibs.aio.lock "
                    "and dibs.aio.locked, which have a client for each loop"
                )
            self._bound = running
            self._alarms = Alarms(self.now, running.call_later)

    def mutex(self) -> AbstractContextManager[Any]:
        """Nothing to exclude: only one task runs at a time, and a short step has no await.

        A lock that nobody contends for is the cheapest thing to put after ``with``; `nullcontext` is two calls more.
        """
        return threading.RLock()

    def event(self) -> AsyncEvent:
        """An event that tasks wait for."""
        return AsyncEvent(self._loop)

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for *seconds*."""
        await asyncio.sleep(seconds)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> AsyncJob:
        """Start *main* as a task."""
        return AsyncJob(self._loop.create_task(main(), name=name))

    def call_at(self, when: float, call: Callable[[], None]) -> Alarm:
        """Do *call* in the loop at the moment *when*."""
        return self._alarms.add(when, call)

    def interrupt(self) -> TaskInterrupt | None:
        """An interrupt for the current task."""
        task = asyncio.current_task()
        return TaskInterrupt(task) if task is not None else None

    async def shielded(self, work: Awaitable[T]) -> T:
        """Finish *work* in a task of its own; cancels that come meanwhile are raised when it is done."""
        task = asyncio.ensure_future(work)
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # so that the loop does not report it as never retrieved
            raise cancelled
        return task.result()

    async def readable(self, fd: int, timeout: float) -> bool:
        """Wait in the loop until *fd* can be read."""
        event = self.event()
        self._loop.add_reader(fd, event.set)
        try:
            return await event.wait(timeout)
        finally:
            self._loop.remove_reader(fd)

    def after_fork(self, call: Callable[[], None]) -> None:
        """Do *call* in forked children."""
        lifetime.after_fork(call)

    def when_loop_closes(self, call: Callable[[], None]) -> Callable[[], None]:
        """Look at the loop now and then: it calls nobody as it closes."""
        loop, owned, end = self._loop, weakref.WeakMethod(call), threading.Event()

        def watch() -> None:
            while not loop.is_closed():
                if end.wait(GLANCE) or owned() is None:
                    return
            if (ended := owned()) is not None:
                ended()

        thread = threading.Thread(target=watch, name="dibs loop watch", daemon=True)

        def stop() -> None:
            end.set()
            with contextlib.suppress(RuntimeError):  # it was never started, or it is the one that calls
                thread.join(GLANCE)  # which wakes it at once

        with contextlib.suppress(RuntimeError):  # no thread can be started: then the end of the process has to do
            thread.start()
        return stop

    def end_process(self, why: str) -> None:
        """End it, whatever its tasks do."""
        lifetime.end_now(why)

    def at_exit(self, call: Callable[[], None]) -> None:
        """Nothing can be awaited when the interpreter ends: leases that are still held end by their ttl."""

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        assert self._bound is not None, "enter() comes first"
        return self._bound

    def _forked(self) -> None:
        self._bound = None
        self._chance.seed()
