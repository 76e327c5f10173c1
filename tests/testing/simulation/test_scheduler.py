"""Virtual time, order from a seed, and what happens when nothing can happen."""

from __future__ import annotations

import os

import pytest

from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Cancelled, Scheduler, Stuck


def order_of(seed: int) -> list[str]:
    """In which order ten tasks, all ready at once, take three steps each."""
    world, order = Scheduler(seed), list[str]()
    process = SimulatedRuntime(world, "p")

    async def steps(name: str) -> None:
        for _ in range(3):
            order.append(name)
            await process.sleep(0)

    for number in range(10):
        process.start(steps(str(number)), str(number))
    world.run()
    return order


def test_a_seed_repeats_its_run() -> None:
    assert order_of(5) == order_of(5)


def test_another_seed_is_another_order() -> None:
    assert len({tuple(order_of(seed)) for seed in range(20)}) == 20


def test_an_hour_passes_in_no_time() -> None:
    world = Scheduler(1)
    process = SimulatedRuntime(world, "p")
    process.start(process.sleep(3600), "sleeper")
    world.run(longest=4000)
    assert world.now == 3600


def test_timers_come_in_the_order_of_their_moments() -> None:
    world, seen = Scheduler(1), list[float]()
    for moment in (3.0, 1.0, 2.0):
        world.call_later(moment, lambda: seen.append(world.now))
    world.run_for(10)
    assert seen == [1.0, 2.0, 3.0]
    assert world.now == 10


def test_a_task_that_nothing_will_wake_is_named_with_the_place_where_it_waits() -> None:
    world = Scheduler(77)
    process = SimulatedRuntime(world, "p")
    process.start(forgotten(process), "forgotten")
    with pytest.raises(Stuck, match=r"(?s)seed 77.*nothing can wake them.*p/forgotten in forgotten:\d+"):
        world.run()
    world.close()


async def forgotten(process: SimulatedRuntime) -> None:
    await process.event().wait(None)


def test_a_run_that_takes_too_long_is_stuck() -> None:
    world = Scheduler(1)
    process = SimulatedRuntime(world, "p")
    process.start(process.sleep(100), "slow")
    with pytest.raises(Stuck, match="after 10 s of virtual time"):
        world.run(longest=10)
    world.close()


def test_a_run_that_spins_is_stuck() -> None:
    world = Scheduler(1)
    world.MOST_STEPS = 1000
    process = SimulatedRuntime(world, "p")

    async def spin() -> None:
        while True:
            await process.sleep(0)

    process.start(spin(), "spinner")
    with pytest.raises(Stuck, match="still not over"):
        world.run()
    world.close()


def test_an_error_in_a_task_fails_the_run_and_names_the_seed() -> None:
    world = Scheduler(42)
    process = SimulatedRuntime(world, "p")

    async def broken() -> None:
        raise ValueError("broken")

    process.start(broken(), "task")
    with pytest.raises(AssertionError, match="seed 42: p/task failed"):
        world.run()


def test_the_story_of_a_run_is_readable() -> None:
    world = Scheduler(3)
    world.call_later(1.5, lambda: world.log("something happened", "p"))
    world.run_for(2)
    assert world.story() == "seed 3:\n    1.500000  p              something happened"


@pytest.mark.parametrize("late", [False, True])
def test_a_task_can_be_cancelled_at_any_await(late: bool) -> None:
    for number in range(1, 5):
        world, done = Scheduler(1), list[int]()
        process = SimulatedRuntime(world, "p")

        async def work(done: list[int] = done, process: SimulatedRuntime = process) -> None:
            for step in range(4):
                await process.sleep(1)
                done.append(step)

        task = process.start(work(), "task")
        task.cancel_at(number, late=late)
        world.run()
        assert isinstance(task.error, Cancelled)
        assert len(done) == number - 1
        assert world.now == (number if late else number - 1)


def test_closing_the_world_runs_no_effect_of_those_who_had_not_ended() -> None:
    world, effects = Scheduler(1), list[str]()
    process = SimulatedRuntime(world, "p")

    async def work() -> None:
        try:
            await process.event().wait(None)
        finally:
            await process.sleep(1)
            effects.append("after an await")

    process.start(work(), "task")
    world.run_for(1)
    world.close()
    assert not effects
    assert not world.tasks


@pytest.mark.parametrize("ready", [True, False])
def test_a_real_file_is_looked_at_before_virtual_time_goes_on(ready: bool) -> None:
    world, answers = Scheduler(1), list[bool]()
    process = SimulatedRuntime(world, "p")
    read, write = os.pipe()

    async def wait() -> None:
        answers.append(await process.readable(read, 60.0))

    if ready:
        world.call_later(1.0, lambda: os.write(write, b"x"))
    process.start(wait(), "reader")
    world.run()
    os.close(read)
    os.close(write)
    assert answers == [ready]
    assert world.now == (1.0 if ready else 60.0)
