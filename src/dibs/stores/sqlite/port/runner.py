"""Runs the steps of the embedded store: in the caller's own thread, or in a worker thread for an event loop."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple, cast

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.runtime import Driver, Event, Runtime, lifetime
from dibs.stores.sqlite.port.database import Database

Ts = TypeVarTuple("Ts")
T = TypeVar("T")
Step = Callable[[Database, *Ts], T]

LONGEST = 3600.0
"""Seconds: the clocks of the system do not take infinity."""

FORK_PATIENCE = 5.0
"""Seconds that a fork waits for a step of another thread to end; it usually takes microseconds."""

CLOSE_PATIENCE = 1.0
"""Seconds that closing waits for a step of another thread to end."""

GRACE = 0.03
"""Seconds that the worker gets on top, so that it is the one to say what went wrong."""


class Port(Protocol):
    """One of the twins."""

    database: Database

    async def call(self, within: float, step: Step[*Ts, T], *args: *Ts) -> T:
        """Do *step* on the database and return its answer, within *within* seconds."""

    async def close(self) -> None:
        """Close the database."""

    def forked(self) -> None:
        """Forget the parent's connection and threads."""


def port_for(database: Database, runtime: Runtime) -> Port:
    """The twin for *runtime*: an event loop needs a worker, since others go on there while one waits."""
    return BlockingPort(database, runtime) if runtime.driver is Driver.BLOCKING else WorkerPort(database, runtime)


class BlockingPort:
    """Works in the caller's thread, one thread at a time."""

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self.database, self._now = database, runtime.now
        self._working = self._closed = False
        self._new_turn()
        lifetime.around_fork(self._before_fork, self._after_fork)

    async def call(self, within: float, step: Step[*Ts, T], *args: *Ts) -> T:
        """Do *step* here and now."""
        until, turn, entered = self._now() + within, self._turn, False
        try:
            # Asked without a timeout first: that is 0.6 µs faster, and done for every step.
            if not (turn.acquire(False) or turn.acquire(timeout=min(max(within, 0.0), LONGEST))):
                raise StoreUnavailable(self.database.url, "another thread of this client has not finished with it")
            if self._working:  # a signal handler, in the middle of a step of the thread that it interrupted
                raise StoreUnavailable(self.database.url, "a signal handler cannot use it while its thread does")
            if self._closed:  # while this thread waited: to go on would open it again
                raise StoreUnavailable(self.database.url, "it was closed by another thread")
            entered = self._working = True
            return self.database.run(until, step, *args)
        finally:
            if entered:
                self._working = False
            try:  # noqa: SIM105 - suppress() costs 1 µs, and this is done for every step
                turn.release()
            except RuntimeError:
                pass  # we did not get it

    async def close(self) -> None:
        """Close the database, between two steps: SQLite does not survive it in the middle of one."""
        self._closed = True
        mine = self._turn.acquire(timeout=CLOSE_PATIENCE)
        try:
            if mine and not self._working:
                self.database.close()
            else:
                self.database.end_life()
        finally:
            if mine:
                self._turn.release()

    def forked(self) -> None:
        """Forget the parent's connection."""
        self.database.forked(resting=self._turn.acquire(False) and not self._working)
        self._new_turn()

    def _before_fork(self) -> None:
        """SQLite forbids a child to inherit a connection: see `Database.rest`."""
        if self._turn.acquire(timeout=FORK_PATIENCE) and not self._working:
            self.database.rest()

    def _after_fork(self) -> None:
        with contextlib.suppress(RuntimeError):  # we did not get it
            self._turn.release()

    def _new_turn(self) -> None:
        """A lock that knows its thread: after Ctrl-C in the moment of taking it, we can tell whether we have it.

        A forked child needs a new one, as the parent's may be held by a thread that does not exist in the child.
        """
        self._turn, self._working = threading.RLock(), False


class WorkerPort:
    """Works in one thread of its own, in the order of the calls: the event loop never blocks.

    A call that was cancelled keeps its place, so what is sent after it, its release, is also done after it.
    """

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self.database, self._runtime = database, runtime
        self._tasks: queue.SimpleQueue[_Task[Any] | None] | None = None
        self._closed = False
        self._turn = threading.RLock()  # the worker's, and that of who forks
        lifetime.around_fork(self._before_fork, self._after_fork)

    async def call(self, within: float, step: Step[*Ts, T], *args: *Ts) -> T:
        """Do *step* in the worker."""
        database, turn, until = self.database, self._turn, self._runtime.now() + within
        if self._closed:  # while this task waited: to go on would open it again
            raise StoreUnavailable(database.url, "it was closed by another task")

        def work() -> T:
            with turn:
                return database.run(until, step, *args)

        task = _Task(work, self._runtime.event())
        self._worker().put(task)
        if await task.done.wait(min(within + GRACE, LONGEST)):
            return task.result()
        if task.claim():
            raise StoreUnavailable(database.url, "the calls before this one took all the time it had")
        raise OutcomeUnknown(database.url, "the disk does not answer")

    async def close(self) -> None:
        """Close the database when all calls are done, and end the worker."""
        self._closed = True
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            task = _Task(self.database.close, self._runtime.event())
            tasks.put(task)
            tasks.put(None)
            await task.done.wait(LONGEST)

    def forked(self) -> None:
        """Forget the parent's connection, and its worker, which does not exist here."""
        self.database.forked(resting=self._turn.acquire(False))
        self._tasks, self._turn = None, threading.RLock()

    def _before_fork(self) -> None:
        """SQLite forbids a child to inherit a connection: see `Database.rest`."""
        if self._turn.acquire(timeout=FORK_PATIENCE):
            self.database.rest()

    def _after_fork(self) -> None:
        with contextlib.suppress(RuntimeError):  # we did not get it
            self._turn.release()

    def _worker(self) -> queue.SimpleQueue[_Task[Any] | None]:
        if self._tasks is None:
            tasks: queue.SimpleQueue[_Task[Any] | None] = queue.SimpleQueue()
            # A daemon, and it knows its queue only: neither it nor a forgotten client keeps the other from ending.
            worker = threading.Thread(target=_work, args=(tasks,), name="dibs sqlite", daemon=True)
            try:
                worker.start()
            except RuntimeError as exc:
                raise StoreUnavailable(self.database.url, f"no thread can be started to work in it: {exc}") from exc
            self._tasks = tasks
            weakref.finalize(self, tasks.put, None).atexit = False
        return self._tasks


class _Task(Generic[T]):
    """One call on its way to the worker and back."""

    def __init__(self, work: Callable[[], T], done: Event) -> None:
        self._work, self.done = work, done
        self._unclaimed = [None]
        self._answer: T | None = None
        self._error: BaseException | None = None

    def claim(self) -> bool:
        """Tell the first who asks, the worker or a caller who gave up, that it may go ahead."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def do(self) -> None:
        """What the worker does."""
        try:
            self._answer = self._work()
        except BaseException as exc:  # noqa: BLE001 - it belongs to the caller
            self._error = exc
        with contextlib.suppress(RuntimeError):  # its loop was closed meanwhile
            self.done.set()

    def result(self) -> T:
        """What came of it."""
        if self._error is not None:
            raise self._error
        return cast(T, self._answer)


def _work(tasks: queue.SimpleQueue[_Task[Any] | None]) -> None:
    while (task := tasks.get()) is not None:
        if task.claim():
            task.do()
        del task  # or the last one would live as long as the worker waits
