"""The runtime of simulated processes: each has its own clock and pid, and can be paused or killed at any await.

A process that is killed vanishes: no ``finally`` runs, as after ``kill -9``. One that is paused does nothing for a
while, and what was due meanwhile comes late, as after SIGSTOP or a long garbage collection. See
`dibs.testing.simulation.scheduler` for time and order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from dibs.errors import Misuse
from dibs.runtime import Driver
from dibs.testing.simulation.scheduler import PARKING, Cancelled, Scheduler, SimulatedTimer, SimulationOver, Task

T = TypeVar("T")


class SimulatedEvent:
    """A flag that tasks of one process wait for; anybody in the simulation may set it."""

    __slots__ = ("_flag", "_process", "_waiting")

    def __init__(self, process: SimulatedRuntime) -> None:
        self._process, self._flag = process, False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        """Whether it was set and not cleared since."""
        return self._flag

    def clear(self) -> None:
        """Lower the flag."""
        self._flag = False

    def set(self) -> None:
        """Raise the flag."""
        self._flag = True
        for task in self._waiting:
            task.wake()

    async def wait(self, timeout: float | None) -> bool:
        """Wait until it is set, at most *timeout* seconds; tell whether it is."""
        if not self._flag:
            task = self._process.task
            self._waiting.append(task)
            try:
                await self._process.park(timeout)
            finally:
                self._waiting.remove(task)
        return self._flag


class _Mutex:
    """Raises where a plain lock of threads would wait for ever: taken twice, or kept over an await."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = False

    def __enter__(self) -> None:
        if self._taken:
            raise RuntimeError("a mutex is taken that is taken already: in threads this hangs for ever")
        self._taken = True

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken = False


class SimulatedJob:
    """A task beside the others of its process."""

    __slots__ = ("_process", "task")

    def __init__(self, process: SimulatedRuntime, task: Task) -> None:
        self._process, self.task = process, task

    async def join(self, timeout: float | None) -> None:
        """Wait until it has ended, at most *timeout* seconds."""
        if not self.task.done:
            over = self._process.event()
            self.task.on_done.append(over.set)
            await over.wait(timeout)


class SimulatedInterrupt:
    """Cancels a task, and knows its own cancel from another's."""

    __slots__ = ("_before", "_fired", "_task")

    def __init__(self, task: Task) -> None:
        self._task, self._before, self._fired = task, task.cancelling, False

    def fire(self) -> None:
        """Cancel the task, once."""
        if not self._fired:
            self._fired = True
            self._task.cancel()

    def absorb(self, exc: BaseException | None) -> bool:
        """Take our cancel back; tell whether *exc* is that cancel, and no one else cancelled the task too."""
        if not self._fired:
            return False
        return self._task.uncancel() <= self._before and isinstance(exc, Cancelled)


class SimulatedRuntime:
    """One process on one machine. *rate* is how fast its clock runs, *offset* what it showed at the beginning."""

    blocking = False
    driver = Driver.BLOCKING  # in no virtual time at all: a worker would work in none, or never come to its end

    def __init__(self, world: Scheduler, name: str, *, pid: int = 1000, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world, self.name, self.rate, self.offset = world, name, rate, offset
        self.random = world.chance.random
        self.dead = False
        self.died_at = float("inf")
        self.stops: list[tuple[float, float]] = []
        """The true times at which it stood still, from and to."""
        self._pid = pid
        self._paused_until = 0.0
        self._put_off: list[Task | SimulatedTimer] = []
        self._steps_to_live: int | None = None

    # --- what is done to it --------------------------------------------------------------------------------

    def start(self, main: Coroutine[Any, Any, Any], name: str) -> Task:
        """Start *main*; the simulation runs until all that was started so has ended."""
        task = Task(self, main, name, background=False)
        self.world.start(task)
        return task

    def pause(self, seconds: float) -> None:
        """Let it stand still for *seconds* of true time."""
        now = self.world.now
        self.world.log(f"stands still for {seconds:.3f} s", self.name)
        if not self.dead and now + seconds > self._paused_until:
            self._paused_until = now + seconds
            self.stops.append((now, self._paused_until))
            self.world.call_later(seconds, self._go_on)

    def crash(self) -> None:
        """Let it vanish, with all its tasks, where they stand."""
        if not self.dead:
            self.world.log("crashes", self.name)
            self.dead, self.died_at = True, self.world.now
            self.world.bury(self)

    def crash_after(self, steps: int) -> None:
        """Let it crash when its tasks have made so many *steps*: between any two calls."""
        self._steps_to_live = steps

    @property
    def runs(self) -> bool:
        """Whether its tasks can run now."""
        return not self.dead and self.world.now >= self._paused_until

    def stood_still(self, since: float, until: float) -> float:
        """For how much of that true time it stood still."""
        return sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in self.stops)

    def true(self, moment: float) -> float:
        """The true time at which its clock shows *moment*."""
        return (moment - self.offset) / self.rate

    # --- the interface Runtime -----------------------------------------------------------------------------

    def now(self) -> float:
        """Its own clock."""
        return self.offset + self.world.now * self.rate

    def token(self) -> str:
        """128 bits that follow from the seed."""
        return f"{self.world.chance.getrandbits(128):032x}"

    def pid(self) -> int:
        """Its number."""
        return self._pid

    def current(self) -> object:
        """The task that runs."""
        return self.world.running

    def enter(self) -> None:
        """Refuse a task of another process: memory is not shared."""
        if self.world.running is not None and self.world.running.process is not self:
            raise Misuse(f"a task of process {self.world.running.process.name} uses a client of process {self.name}")

    def mutex(self) -> AbstractContextManager[Any]:
        """It excludes nobody, since nothing else runs between two awaits, but refuses what would hang a thread."""
        return _Mutex()

    def event(self) -> SimulatedEvent:
        """An event that its tasks wait for."""
        return SimulatedEvent(self)

    async def sleep(self, seconds: float) -> None:
        """Let others run for *seconds* of its clock."""
        await self.park(seconds)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> SimulatedJob:
        """Start *main* as a task."""
        return self._beside(main(), name)

    def call_at(self, when: float, call: Callable[[], None]) -> SimulatedTimer:
        """Do *call* when its clock shows *when*."""
        return self.world.call_at(self.true(when), call, self)

    def interrupt(self) -> SimulatedInterrupt:
        """An interrupt for the task that runs."""
        return SimulatedInterrupt(self.task)

    async def shielded(self, work: Awaitable[T]) -> T:
        """Finish *work* in a task of its own; a cancel that comes meanwhile is raised when it is done."""
        assert isinstance(work, Coroutine)
        if self.world.closed:
            work.close()
            raise SimulationOver
        job = self._beside(work, f"{self.task.name}, shielded")
        cancelled: Cancelled | None = None
        while not job.task.done:
            try:
                await job.join(None)
            except Cancelled as exc:
                cancelled = exc
        if job.task.error is not None:
            self.world.failed[:] = [task for task in self.world.failed if task is not job.task]  # told, here
        if cancelled is not None:
            raise cancelled
        if job.task.error is not None:
            raise job.task.error
        return job.task.result  # type: ignore[no-any-return]

    async def readable(self, fd: int, timeout: float) -> bool:
        """Wait until *fd*, a real one, can be read; it is looked at before virtual time goes on."""
        event = self.event()
        forget = self.world.watch(fd, event.set)
        try:
            return await event.wait(timeout)
        finally:
            forget()

    def after_fork(self, call: Callable[[], None]) -> None:
        """Simulated processes do not fork."""

    def when_loop_closes(self, call: Callable[[], None]) -> Callable[[], None]:
        """There is none."""
        return lambda: None

    def end_process(self, why: str) -> None:
        """It vanishes, and the trace says why."""
        self.world.log(why, self.name)
        self.crash()

    def at_exit(self, call: Callable[[], None]) -> None:
        """As in async code, nothing is done at the end."""

    # --- for the scheduler and the events ------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task that runs."""
        if self.world.closed:
            raise SimulationOver
        assert self.world.running is not None, "only tasks of the simulation can wait"
        return self.world.running

    async def park(self, seconds: float | None) -> None:
        """Wait to be woken, at most *seconds* of its clock."""
        if self.world.closed or self.dead:
            raise SimulationOver
        if seconds is None:
            await PARKING
            return
        moment = self.world.now + max(0.0, seconds) / self.rate
        timer = self.world.call_at(moment, self.task.wake, self)
        try:
            await PARKING
        finally:
            timer.cancel()

    def put_off(self, what: Task | SimulatedTimer) -> None:
        """Keep for later what cannot be done now: it stands still, or is dead."""
        if not self.dead:
            self._put_off.append(what)

    def count_step(self) -> None:
        """One of its tasks has made a step."""
        if self._steps_to_live is not None:
            self._steps_to_live -= 1
            if self._steps_to_live <= 0:
                self.crash()

    def _go_on(self) -> None:
        if self.runs:
            self.world.log("goes on", self.name)
            put_off, self._put_off = self._put_off, []
            for what in put_off:
                if isinstance(what, SimulatedTimer):
                    what.fire()
                else:
                    self.world.make_ready(what)

    def _beside(self, main: Coroutine[Any, Any, Any], name: str) -> SimulatedJob:
        task = Task(self, main, name, background=True)
        self.world.start(task)
        return SimulatedJob(self, task)
