"""What the core needs of time and concurrency, and nothing else; three runtimes provide it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Driver(Enum):
    """How the ports of a store do their I/O for a runtime."""

    BLOCKING = "blocking"
    """By calls that block the caller's thread until they are answered, or until their time is up."""
    ASYNCIO = "asyncio"
    """By the event loop of asyncio that runs the caller."""


class Event(Protocol):
    """A flag that can be waited for. `set` may be called from any thread."""

    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""

    def set(self) -> None:
        """Raise the flag and wake all who wait for it."""

    def clear(self) -> None:
        """Lower the flag."""

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most *timeout* seconds; tell whether it is."""


class Job(Protocol):
    """Something that `Runtime.spawn` started."""

    async def join(self, timeout: float) -> None:
        """Wait until it has ended, at most *timeout* seconds."""


class Timer(Protocol):
    """Something that `Runtime.call_at` will do."""

    def cancel(self) -> None:
        """Do not do it."""


class Interrupt(Protocol):
    """A way to stop the body of an ``async with`` from outside, as `asyncio.timeout` does."""

    def fire(self) -> None:
        """Cancel the task that made this interrupt."""

    def absorb(self, exc: BaseException | None) -> bool:
        """Called once when the body has ended with *exc*: tell whether it is ours to replace."""


class Runtime(Protocol):
    """Time and concurrency for one client."""

    blocking: bool
    """True if no await of this runtime ever suspends, so that `run` can step through a coroutine at once."""

    driver: Driver
    """Which kind of I/O the ports are to do. A runtime that is neither of the two built-in ones says BLOCKING."""

    def now(self) -> float:
        """Seconds on a clock that never goes back, counts suspend, and is the same for every process here."""

    def random(self) -> float:
        """A number in [0, 1) for jitter."""

    def token(self) -> str:
        """A new token: unguessable, never given out before."""

    def pid(self) -> int:
        """The process we are in."""

    def current(self) -> object:
        """The task or thread we are in; the same object as long as it lives, and never one of another."""

    def enter(self) -> None:
        """Raise `Misuse` if this client cannot be used from here, for example from another event loop.

        Called before anything of the client is touched; notices a fork that nobody has told us of.
        """

    def mutex(self) -> AbstractContextManager[Any]:
        """A lock for short steps without an await; needs to exclude only where threads do."""

    def event(self) -> Event:
        """A new event, not set."""

    async def sleep(self, seconds: float) -> None:
        """Let *seconds* pass."""

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Job:
        """Start *main* beside the caller."""

    def call_at(self, when: float, call: Callable[[], None]) -> Timer | None:
        """Do *call* at the moment *when*; None in a runtime that has no timers without threads."""

    def interrupt(self) -> Interrupt | None:
        """An interrupt for the current task; None where nothing may be raised into a running body."""

    async def shielded(self, work: Awaitable[T]) -> T:
        """Finish *work* even if the caller is cancelled meanwhile; the cancel comes out afterwards."""

    async def readable(self, fd: int, timeout: float) -> bool:
        """Wait until *fd* can be read, at most *timeout* seconds; tell whether it can."""

    def after_fork(self, call: Callable[[], None]) -> None:
        """Do *call*, a bound method, in every child forked from now on, while its owner lives."""

    def when_loop_closes(self, call: Callable[[], None]) -> Callable[[], None]:
        """Do *call*, a bound method, in another thread when the event loop was closed, while its owner lives.

        Nothing that needs the loop can be done any more: it is for what goes on living without it, such as a
        connection in which something is locked. Returns what ends that. Runtimes without an event loop do nothing.
        """

    def end_process(self, why: str) -> None:
        """End this process at once, with *why* as its last line on stderr: nothing else stops work that goes on."""

    def at_exit(self, call: Callable[[], None]) -> None:
        """Do *call*, a bound method, at the end of this process's interpreter, while its owner lives; in no child."""
