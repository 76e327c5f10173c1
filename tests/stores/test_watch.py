"""The loop of a watch, in many histories: what is added at any moment is found in time, and then the loop ends.

A failure names its seed: `play(seed)` plays that history again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dibs.stores.watch import IDLE, SHORTEST, WatchLoop
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler

NAP = 1.0

THINGS = 12

STEP = 0.3
"""Seconds that a look takes at most, when it asks a server."""


class Things:
    """What is watched: each thing ends at its moment, and is found by the look after that."""

    def __init__(self, runtime: SimulatedRuntime, chance: random.Random) -> None:
        self._runtime, self._chance = runtime, chance
        self.ends: dict[int, float] = {}
        self.found: dict[int, float] = {}
        """By how many seconds each was found late."""

    def is_idle(self) -> bool:
        return not self.ends

    def next_end(self) -> float:
        return min(self.ends.values(), default=math.inf)

    async def look(self) -> None:
        now = self._runtime.now()
        due = {thing: now - end for thing, end in self.ends.items() if end <= now}
        for thing in due:
            del self.ends[thing]
        self.found |= due
        if due:
            await self._runtime.sleep(self._chance.uniform(0, STEP))


class AddedAtTheEnd(Things):
    """One thing is added by a thread that runs between the last look of the loop and its end."""

    loop: WatchLoop
    asked = 0

    def is_idle(self) -> bool:
        idle = super().is_idle()
        self.asked += 1
        if self.asked == IDLE:
            self.ends[0] = self._runtime.now() + NAP
            self.loop.start(self)
        return idle


class CountingRuntime(SimulatedRuntime):
    """Knows the jobs that it started."""

    def __init__(self, world: Scheduler) -> None:
        super().__init__(world, "client")
        self.jobs: list[Any] = []

    def spawn(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Any:
        job = super().spawn(main, name)
        self.jobs.append(job)
        return job


def simulated(seed: int) -> tuple[Scheduler, CountingRuntime, Things, WatchLoop]:
    world = Scheduler(seed)
    runtime = CountingRuntime(world)
    return world, runtime, Things(runtime, random.Random(seed)), WatchLoop(runtime, "watch", NAP)


def play(seed: int) -> None:
    """Add things one after the other, some when the loop is about to end for want of any."""
    world, runtime, things, loop = simulated(seed)
    chance = random.Random(seed)

    async def client() -> None:
        for thing in range(THINGS):
            await runtime.sleep(chance.choice([0.0, 0.01, NAP, IDLE * NAP, chance.uniform(0, 2 * IDLE * NAP)]))
            things.ends[thing] = runtime.now() + chance.uniform(0, 3 * NAP)
            loop.start(things)
            loop.wake_by(things.ends[thing])
        await runtime.sleep(2 * IDLE * NAP)

    runtime.start(client(), "client")
    world.run()
    world.close()
    assert len(things.found) == THINGS, f"seed {seed}: {sorted(things.found)} of {THINGS} were found"
    late = max(things.found.values())
    assert late <= STEP + SHORTEST, f"seed {seed}: one was found {late} s late"
    assert all(job.task.done for job in runtime.jobs), f"seed {seed}: the loop goes on with nothing to watch"


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_what_is_added_at_any_moment_is_found_in_time_and_then_the_loop_ends(first: int) -> None:
    for seed in range(first, first + 100):
        play(seed)


def test_what_is_added_while_the_loop_ends_is_found_by_the_next_one() -> None:
    world, runtime, _, loop = simulated(0)
    things = AddedAtTheEnd(runtime, random.Random(0))
    things.loop = loop
    loop.start(things)
    world.run_for(2 * IDLE * NAP)
    assert things.found
    assert len(runtime.jobs) == 2
    world.close()


def test_a_loop_that_is_stopped_ends_at_once_and_never_begins_again() -> None:
    world, runtime, things, loop = simulated(0)
    things.ends[0] = 1000.0
    loop.start(things)
    world.run_for(NAP / 2)
    loop.stop()
    world.run_for(0.0)
    assert runtime.jobs[0].task.done
    loop.start(things)
    assert len(runtime.jobs) == 1
    world.close()


def test_where_no_job_can_be_started_the_caller_is_told_and_the_next_call_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, runtime, things, loop = simulated(0)
    with monkeypatch.context() as patch:
        patch.setattr(
            runtime, "spawn", lambda main, name: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
        )
        with pytest.raises(RuntimeError):
            loop.start(things)
    loop.start(things)
    assert len(runtime.jobs) == 1
    world.close()
