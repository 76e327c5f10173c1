"""A third runtime, as one would be written for another framework: a cooperative loop of its own, in one thread.

A task that waits tells the loop what for, and until when at the latest; the loop goes on with those that are ready. It
has no cancel and no timers, which a runtime may leave out.
"""

from __future__ import annotations

import math
import os
import random
import select
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from dibs.runtime import Driver, lifetime
from dibs.runtime.clock import boot_time

T = TypeVar("T")
Ready = Callable[[], object]


@types.coroutine
def until(ready: Ready, when: float) -> Generator[tuple[Ready, float], None, None]:
    """Let other tasks run until *ready* says so, at most until the moment *when*."""
    yield ready, when


class Task:
    """One coroutine, and what it waits for; as a `Job`, it can be waited for itself."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work, self.over = work, False
        self.ready: Ready = lambda: True
        self.until = math.inf

    async def join(self, timeout: float) -> None:
        await until(lambda: self.over, boot_time() + timeout)


class Loop:
    """All tasks, and the one that runs. `wake` may be called from any thread."""

    def __init__(self) -> None:
        self.current: Task | None = None
        self._tasks: list[Task] = []
        self._woken = threading.Event()
        self.wake = self._woken.set

    def start(self, work: Coroutine[Any, Any, Any]) -> Task:
        self._tasks.append(Task(work))
        return self._tasks[-1]

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        main = self.start(work)
        try:
            while not main.over:
                self._woken.clear()
                due = [task for task in self._tasks if task.ready() or task.until <= boot_time()]
                for task in due:
                    self._step(task)
                if not due:
                    self._woken.wait(max(0.0, min(min(task.until for task in self._tasks) - boot_time(), 60.0)))
        finally:
            for task in self._tasks:
                task.work.close()

    def _step(self, task: Task) -> None:
        self.current = task
        try:
            task.ready, task.until = task.work.send(None)
        except StopIteration:
            task.over = True
        finally:
            self.current = None
        if task.over:
            self._tasks.remove(task)


class Event:
    def __init__(self, loop: Loop) -> None:
        self._loop, self._flag = loop, False

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._loop.wake()

    def clear(self) -> None:
        self._flag = False

    async def wait(self, timeout: float | None) -> bool:
        if not self._flag:
            await until(self.is_set, math.inf if timeout is None else boot_time() + timeout)
        return self._flag


class LoopRuntime:
    """What a client needs, by the tasks of one `Loop`."""

    blocking = False
    driver = Driver.BLOCKING

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.now, self.random, self.pid = boot_time, random.random, os.getpid

    def token(self) -> str:
        return os.urandom(16).hex()

    def current(self) -> object:
        return self._loop.current

    def enter(self) -> None:
        lifetime.look()

    def mutex(self) -> AbstractContextManager[Any]:
        return threading.RLock()

    def event(self) -> Event:
        return Event(self._loop)

    async def sleep(self, seconds: float) -> None:
        await until(lambda: False, boot_time() + seconds)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Task:
        return self._loop.start(main())

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        return None

    def interrupt(self) -> None:
        return None

    async def shielded(self, work: Awaitable[T]) -> T:
        return await work

    async def readable(self, fd: int, timeout: float) -> bool:
        end = boot_time() + timeout
        while not select.select([fd], [], [], 0)[0]:
            if boot_time() >= end:
                return False
            await self.sleep(0.01)
        return True

    def after_fork(self, call: Callable[[], None]) -> None:
        lifetime.after_fork(call)

    def when_loop_closes(self, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def end_process(self, why: str) -> None:
        lifetime.end_now(why)

    def at_exit(self, call: Callable[[], None]) -> None:
        """Leases that are held when the program ends are free after their ttl."""
