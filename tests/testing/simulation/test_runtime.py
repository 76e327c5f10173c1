"""Simulated processes: clocks, pauses, crashes, cancels, shields and interrupts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dibs.errors import Misuse
from dibs.runtime import Runtime
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Cancelled, Scheduler, Task


@pytest.fixture
def world() -> Iterator[Scheduler]:
    world = Scheduler(1)
    yield world
    world.close()


@pytest.fixture
def process(world: Scheduler) -> SimulatedRuntime:
    return SimulatedRuntime(world, "p")


def test_a_simulated_process_is_a_runtime(process: SimulatedRuntime) -> None:
    runtime: Runtime = process  # the type checker compares every method
    assert not runtime.blocking


def test_each_process_has_a_clock_of_its_own(world: Scheduler) -> None:
    slow, fast = (SimulatedRuntime(world, str(rate), rate=rate, offset=50) for rate in (0.5, 2.0))
    world.run_for(10)
    assert (slow.now(), fast.now()) == (55, 70)
    assert slow.true(slow.now()) == fast.true(fast.now()) == 10


def test_sleep_is_measured_on_the_own_clock(world: Scheduler) -> None:
    fast = SimulatedRuntime(world, "fast", rate=2.0)
    fast.start(fast.sleep(10), "sleeper")
    world.run()
    assert world.now == 5


def test_tokens_follow_from_the_seed_and_never_repeat() -> None:
    first, again = (SimulatedRuntime(Scheduler(9), "p") for _ in range(2))
    tokens = [first.token() for _ in range(100)]
    assert tokens == [again.token() for _ in range(100)]
    assert len(set(tokens)) == 100


def test_an_event_wakes_who_waits_and_a_timeout_tells_that_it_was_not_set(
    world: Scheduler, process: SimulatedRuntime
) -> None:
    event, answers = process.event(), list[tuple[bool, float]]()

    async def wait(timeout: float | None) -> None:
        answers.append((await event.wait(timeout), world.now))

    for timeout in (None, 1.0, 9.0):
        process.start(wait(timeout), "waiter")
    world.call_later(2, event.set)
    world.run()
    assert sorted(answers) == [(False, 1.0), (True, 2.0), (True, 2.0)]


def test_a_process_that_stands_still_does_what_was_due_when_it_goes_on(
    world: Scheduler, process: SimulatedRuntime
) -> None:
    fired: list[float] = []
    process.start(process.sleep(1), "sleeper")
    process.call_at(2.0, lambda: fired.append(world.now))
    world.call_later(0.5, lambda: process.pause(4.5))
    world.run()
    assert world.now == 5
    assert fired == [5]
    assert process.stood_still(1, 3) == 2


def test_a_crash_runs_no_finally(world: Scheduler, process: SimulatedRuntime) -> None:
    effects: list[str] = []

    async def work() -> None:
        try:
            await process.sleep(10)
        finally:
            effects.append("finally")

    process.start(work(), "task")
    world.call_later(1, process.crash)
    world.run()
    assert not effects
    assert process.died_at == 1


def test_a_process_can_crash_between_any_two_steps(world: Scheduler) -> None:
    for steps in range(1, 6):
        process, done = SimulatedRuntime(world, "p"), list[int]()

        async def work(process: SimulatedRuntime = process, done: list[int] = done) -> None:
            for step in range(10):
                done.append(step)
                await process.sleep(1)

        process.crash_after(steps)
        process.start(work(), "task")
        world.run()
        assert len(done) == steps


def test_shielded_work_is_finished_although_the_task_is_cancelled(world: Scheduler, process: SimulatedRuntime) -> None:
    done: list[float] = []

    async def work() -> None:
        await process.sleep(3)
        done.append(world.now)

    async def main() -> None:
        await process.shielded(work())

    task = process.start(main(), "task")
    for moment in (1, 2):
        world.call_later(moment, task.cancel)
    world.run()
    assert done == [3]
    assert isinstance(task.error, Cancelled)


def test_shielded_work_gives_its_result_or_its_error(world: Scheduler, process: SimulatedRuntime) -> None:
    async def answer(value: int) -> int:
        await process.sleep(1)
        if value < 0:
            raise ValueError(value)
        return value

    async def main() -> None:
        assert await process.shielded(answer(5)) == 5
        with pytest.raises(ValueError, match="-1"):
            await process.shielded(answer(-1))

    process.start(main(), "task")
    world.run()


@pytest.mark.parametrize("others", [0, 1])
def test_an_interrupt_absorbs_its_own_cancel_and_no_other(
    world: Scheduler, process: SimulatedRuntime, others: int
) -> None:
    absorbed: list[bool] = []

    async def main() -> None:
        interrupt = process.interrupt()
        task = process.task

        def cancel() -> None:
            interrupt.fire()
            for _ in range(others):
                task.cancel()

        world.call_later(1, cancel)
        try:
            await process.sleep(5)
        except Cancelled as exc:
            absorbed.append(interrupt.absorb(exc))

    process.start(main(), "task")
    world.run()
    assert absorbed == [not others]


def test_a_task_of_another_process_may_not_use_the_runtime(world: Scheduler, process: SimulatedRuntime) -> None:
    other = SimulatedRuntime(world, "other")

    async def main() -> None:
        process.enter()
        with pytest.raises(Misuse, match="process p uses a client of process other"):
            other.enter()

    process.start(main(), "task")
    world.run()


def test_the_current_task_is_the_one_that_runs(world: Scheduler, process: SimulatedRuntime) -> None:
    seen: dict[Task, object] = {}

    async def main() -> None:
        seen[process.task] = process.current()

    tasks = [process.start(main(), "task") for _ in range(3)]
    world.run()
    assert seen == {task: task for task in tasks}
