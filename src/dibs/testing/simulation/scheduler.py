"""Virtual time, and a seed that decides which task runs next. It knows no lock, no thread, no loop, no real clock.

All that happens follows from the seed, so a run that showed something is repeated by its number. Tasks are plain
coroutines, driven by ``send`` and ``throw``: between two awaits of a task nothing else runs, and at each await
anything may. `dibs.testing.simulation.runtime` makes processes out of this.
"""

from __future__ import annotations

import contextlib
import random
import select
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from typing import Any, Protocol


class Cancelled(BaseException):
    """Thrown into a simulated task that was cancelled, as `asyncio.CancelledError` into a real one."""


class SimulationOver(BaseException):
    """Raised by every await when the simulation is over, so that what never ended unwinds without effect."""


class Stuck(AssertionError):
    """Nothing can happen any more, or far too much has happened, and somebody still waits; it says who and where."""


class _Parking:
    """The one thing that a simulated task ever waits for: to be woken."""

    def __await__(self) -> Generator[None, None, None]:
        yield


PARKING = _Parking()


class SimulatedProcess(Protocol):
    """What owns tasks and timers: it may stand still, or be dead. `SimulatedRuntime` is one."""

    name: str
    world: Scheduler
    dead: bool

    @property
    def runs(self) -> bool:
        """Whether its tasks can run now."""

    def put_off(self, what: Task | SimulatedTimer) -> None:
        """Keep *what* for the moment when it runs again."""

    def count_step(self) -> None:
        """One of its tasks has made a step."""


class SimulatedTimer:
    """Something to be done at a moment of true time, unless its process is dead by then; late if it is paused."""

    __slots__ = ("call", "process")

    def __init__(self, call: Callable[[], object], process: SimulatedProcess | None) -> None:
        self.call: Callable[[], object] | None = call
        self.process = process

    def cancel(self) -> None:
        """Do not do it."""
        self.call = None

    def fire(self) -> None:
        """Do it now, or when its process runs again."""
        if self.process is not None and not self.process.runs:
            self.process.put_off(self)
        elif self.call is not None:
            call, self.call = self.call, None
            call()


class Task:
    """One coroutine of one process."""

    __slots__ = (
        "_cancel_at",
        "_cancel_late",
        "_must_cancel",
        "_parked",
        "awaits",
        "background",
        "cancelling",
        "coro",
        "done",
        "error",
        "name",
        "on_done",
        "process",
        "result",
    )

    def __init__(self, process: SimulatedProcess, coro: Coroutine[Any, Any, Any], name: str, background: bool) -> None:
        self.process, self.coro, self.name, self.background = process, coro, name, background
        self.awaits = 0
        self.cancelling = 0
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.on_done: list[Callable[[], None]] = []
        self._cancel_at, self._cancel_late = 0, False
        self._must_cancel = self._parked = False

    def cancel(self) -> None:
        """Throw `Cancelled` into it at the await where it is, or at its next one."""
        if not self.done:
            self.cancelling += 1
            self._must_cancel = True
            self.wake()

    def uncancel(self) -> int:
        """Take one cancel back; tell how many are left."""
        self.cancelling = max(0, self.cancelling - 1)
        if not self.cancelling:
            self._must_cancel = False
        return self.cancelling

    def cancel_at(self, number: int, *, late: bool = False) -> None:
        """Cancel it at its await of this *number*; *late*: just when that await was about to return."""
        self._cancel_at, self._cancel_late = number, late

    def wake(self) -> None:
        """Let it run again, some time now."""
        if self._parked:
            self._parked = False
            self.process.world.make_ready(self)

    def step(self) -> None:
        """Run it up to its next await."""
        if self._cancel_late and self.awaits == self._cancel_at:
            self._cancel_late = False
            self.cancel()
        try:
            if self._must_cancel:
                self._must_cancel = False
                self.coro.throw(Cancelled())
            else:
                self.coro.send(None)
        except StopIteration as end:
            self._end(end.value, None)
        except BaseException as error:  # noqa: BLE001 - whoever joins it is told, and the run fails by it
            self._end(None, error)
        else:
            self._parked = True
            self.awaits += 1
            if self.awaits == self._cancel_at and not self._cancel_late:
                self.cancel()
            elif self._must_cancel:  # it cancelled itself: that comes at this await, not when the await would return
                self.wake()

    def close(self) -> None:
        """Close its coroutine where it stands, as a loop that ends or a garbage collector does."""
        self._parked = False
        self.coro.close()
        self._end(None, None)

    def where(self) -> str:
        """The functions it stands in, for people."""
        places, frame = [], self.coro
        while frame is not None and getattr(frame, "cr_frame", None) is not None:
            places.append(f"{frame.cr_code.co_qualname}:{frame.cr_frame.f_lineno}")  # type: ignore[attr-defined]
            frame = frame.cr_await  # type: ignore[attr-defined]
        return f"{self} in {' > '.join(places) or 'nothing'}"

    def __str__(self) -> str:
        return f"{self.process.name}/{self.name}"

    def _end(self, result: Any, error: BaseException | None) -> None:
        self.done, self.result, self.error = True, result, error
        self.process.world.ended(self)
        for call in self.on_done:
            call()


class Scheduler:
    """The world of one simulation: true time, what is due when, who is ready, and what has happened."""

    MOST_STEPS = 200_000
    """Steps after which a run counts as one that never ends."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self.running: Task | None = None
        self.closed = False
        self.steps = 0
        self.trace: list[tuple[float, str, str | Callable[[], str]]] = []
        self.tasks: dict[Task, None] = {}  # those that have not ended; a dict keeps their order, a set would not
        self.failed: list[Task] = []
        self._graveyard: list[Task] = []
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, SimulatedTimer]] = []
        self._count = 0
        self._foreground = 0
        self._watched: dict[int, list[Callable[[], None]]] = {}

    # --- what happens --------------------------------------------------------------------------------------

    def run(self, longest: float = 3600.0) -> None:
        """Run until every task that was started as the main one of its process has ended."""
        end = self.now + longest
        while self._foreground:
            if not self._step(end):
                why = f"after {longest:g} s of virtual time" if self._timers else "and nothing can wake them any more"
                raise Stuck(f"seed {self.seed}: tasks wait {why}:\n{self.waiting()}")
        self._raise_failures()

    def run_for(self, seconds: float) -> None:
        """Let *seconds* of true time pass."""
        end = self.now + seconds
        while self._step(end):
            pass
        self.now = end
        self._raise_failures()

    def call_at(
        self, when: float, call: Callable[[], object], process: SimulatedProcess | None = None
    ) -> SimulatedTimer:
        """Do *call* at the true moment *when*; for *process*: not if it is dead, and late if it is paused."""
        timer = SimulatedTimer(call, process)
        self._count += 1
        heappush(self._timers, (max(when, self.now), self._count, timer))
        return timer

    def call_later(self, seconds: float, call: Callable[[], object]) -> SimulatedTimer:
        """Do *call* after *seconds* of true time."""
        return self.call_at(self.now + seconds, call)

    def watch(self, fd: int, call: Callable[[], None]) -> Callable[[], None]:
        """Do *call* whenever *fd*, a real one, can be read; returns what ends that."""
        self._watched.setdefault(fd, []).append(call)
        return lambda: self._unwatch(fd, call)

    def log(self, text: str | Callable[[], str], who: str = "") -> None:
        """Remember that something happened, for the trace of a run that failed; most are never made into text."""
        self.trace.append((self.now, who or str(self.running or "world"), text))

    def story(self, last: int = 400) -> str:
        """The trace, for people; the seed alone is enough to see it again."""
        lines = [
            f"{when:12.6f}  {who:<14} {text if isinstance(text, str) else text()}"
            for when, who, text in self.trace[-last:]
        ]
        return "\n".join([f"seed {self.seed}:", *lines])

    def waiting(self) -> str:
        """Who has not ended, and where they stand."""
        return "\n".join(f"  {task.where()}" for task in self.tasks) or "  nobody"

    def close(self) -> None:
        """The run is over: unwind what never ended, with every effect cut off, so that nothing is left behind."""
        self.closed = True
        for task in [*self.tasks, *self._graveyard]:
            with contextlib.suppress(BaseException):  # what the dying say is of no interest
                task.coro.close()
        self.tasks.clear()
        self._graveyard.clear()

    # --- for tasks and processes ---------------------------------------------------------------------------

    def start(self, task: Task) -> None:
        """From now on *task* takes part."""
        if self.closed or task.process.dead:
            task.coro.close()
            return
        self.tasks[task] = None
        self._foreground += not task.background
        self._ready.append(task)

    def make_ready(self, task: Task) -> None:
        """*task* was woken."""
        self._ready.append(task)

    def ended(self, task: Task) -> None:
        """*task* has ended; unless it was cancelled, an error means that the run failed."""
        if task not in self.tasks:
            return  # it was buried while it ran
        del self.tasks[task]
        self._foreground -= not task.background
        if task.error is not None and not isinstance(task.error, Cancelled):
            self.failed.append(task)

    def bury(self, process: SimulatedProcess) -> None:
        """The tasks of *process* vanish where they stand. They are kept, for a coroutine that is freed runs on."""
        for task in [task for task in self.tasks if task.process is process]:
            del self.tasks[task]
            self._foreground -= not task.background
            self._graveyard.append(task)

    # --- inside --------------------------------------------------------------------------------------------

    def _step(self, end: float) -> bool:
        """One task up to its next await, or one timer; False if nothing is left to happen before *end*."""
        self.steps += 1
        if self.steps > self.MOST_STEPS:
            raise Stuck(f"seed {self.seed}: still not over after {self.steps} steps:\n{self.waiting()}")
        if self._ready:
            self._step_task(self._pick())
            return True
        if self._watched and self._poll():
            return True
        while self._timers and self._timers[0][2].call is None:
            heappop(self._timers)
        if not self._timers or self._timers[0][0] > end:
            return False
        self.now, _, timer = heappop(self._timers)
        timer.fire()
        return True

    def _pick(self) -> Task:
        ready = self._ready
        index = int(self.chance.random() * len(ready)) if len(ready) > 1 else 0
        ready[index], ready[-1] = ready[-1], ready[index]
        return ready.pop()

    def _step_task(self, task: Task) -> None:
        if not task.process.runs:
            task.process.put_off(task)
            return
        self.running = task
        try:
            task.step()
        finally:
            self.running = None
        task.process.count_step()

    def _poll(self) -> bool:
        poll = select.poll()
        for fd in self._watched:
            poll.register(fd, select.POLLIN)
        calls = [call for fd, _ in poll.poll(0) for call in self._watched[fd]]
        for call in calls:
            call()
        return bool(calls) and bool(self._ready)

    def _unwatch(self, fd: int, call: Callable[[], None]) -> None:
        self._watched[fd].remove(call)
        if not self._watched[fd]:
            del self._watched[fd]

    def _raise_failures(self) -> None:
        if self.failed:
            raise AssertionError(f"seed {self.seed}: {self.failed[0]} failed") from self.failed[0].error
