"""One simulated history of a schedule: processes call for its slots while everything fails, and what came of it."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from functools import partial
from typing import Any, NamedTuple

from dibs.core.client import Client
from dibs.core.once.history import OK
from dibs.core.once.once import Run
from dibs.errors import LeaseLost, Misuse, Skipped, StoreUnavailable
from dibs.testing.faults import FarStore, Network, Odds, SimulatedServer
from dibs.testing.history import Hold, overlaps
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler, Stuck

NAME = "report"


class Outcome(NamedTuple):
    wrong: list[str]
    completed: int
    counts: Counter[str]
    story: Any


class History:
    """One run of one seed. *faults* is how many of them there are, from 0 to 1."""

    def __init__(self, seed: int, faults: float) -> None:
        self.world, self.faults = Scheduler(seed), faults
        self.chance = self.world.chance.random
        self.every: float = self.pick(0.7, 2.0)
        self.ttl: float = self.pick(0.3, 1.0)
        self.retries: int = self.pick(0, 0, 1, 3)
        self.server = SimulatedServer(self.world)
        each = 0.05 * faults * self.pick(0, 1, 2)
        self.network = Network(
            self.world, self.server, Odds(*(each, each, each, each, each, each), lose_hint=each, longest=1.5 * self.ttl)
        )
        self.starts: dict[str, list[int]] = defaultdict(list)
        self.completed: dict[str, int] = {}
        self.doubts: list[str] = []
        """What was logged: the store was gone when a run ended, so how it ended may not be on record."""
        self.holds, self.wrong, self.counts = list[Hold](), list[str](), Counter[str]()
        self.processes = [self.process(f"p{number}", 1000 + number) for number in range(3)]
        for process, client in self.processes:
            self.plan(process, client)

    def pick(self, *values: Any) -> Any:
        return values[int(self.chance() * len(values))]

    def process(self, name: str, pid: int) -> tuple[SimulatedRuntime, Client]:
        runtime = SimulatedRuntime(
            self.world, name, pid=pid, rate=1 + 0.002 * (self.chance() - 0.5), offset=1e6 * self.chance()
        )
        return runtime, Client(FarStore(self.network, runtime), runtime)

    def plan(self, process: SimulatedRuntime, client: Client) -> None:
        task = process.start(self.calls(process, client), "calls")
        if self.hits(0.3, "cancelled"):
            task.cancel_at(1 + int(self.chance() * 60), late=self.chance() < 0.5)
        if self.hits(0.4, "crashed"):
            process.crash_after(5 + int(self.chance() * 150))
        if self.hits(0.5, "stood still"):
            pause = self.ttl * self.pick(0.5, 1.2, 2.0)
            self.world.call_later(4 * self.every * self.chance(), partial(process.pause, pause))
        if self.hits(0.2, "outage"):
            begins = 4 * self.every * self.chance()
            self.world.call_later(begins, partial(setattr, self.server, "refuses", True))
            self.world.call_later(begins + self.ttl * self.chance(), partial(setattr, self.server, "refuses", False))

    def hits(self, odds: float, what: str) -> bool:
        happens = self.chance() < odds * self.faults
        self.counts[what] += happens
        return happens

    async def calls(self, process: SimulatedRuntime, client: Client) -> None:
        for _ in range(6):
            await process.sleep(self.every * self.chance())
            await self.call(process, client, self.pick(0, None, self.ttl))

    async def call(self, process: SimulatedRuntime, client: Client, timeout: float | None) -> None:
        once = client.once(NAME, every=self.every, ttl=self.ttl, retries=self.retries, timeout=timeout)
        run: Run | None = None
        try:
            async with once as run:
                await self.work(process, run)
        except (Skipped, StoreUnavailable, LeaseLost, ZeroDivisionError) as error:
            self.counts[getattr(error, "reason", type(error).__name__)] += 1
        except Misuse as error:
            self.wrong.append(f"{error!r}")
        else:
            self.completed[run.slot] = run.lease.fence

    async def work(self, process: SimulatedRuntime, run: Run) -> None:
        self.world.log(f"starts slot {run.slot}, attempt {run.attempt}")
        self.starts[run.slot].append(run.attempt)
        hold = Hold(run.lease.fence, 0.0, self.world.now, who=process.name)
        self.holds.append(hold)
        hold.left(self.world.now)
        try:
            await process.sleep(self.ttl * self.pick(0.1, 0.5, 1.5))
            if self.chance() < 0.2 * self.faults:
                raise ZeroDivisionError
        finally:
            if not self.world.closed and not process.dead:
                hold.left(min(self.world.now, process.true(run.lease.lost._deadline)))

    # --- what came of it -----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            self.world.run_for(8 * self.every)
            self.network.heal()
            self.world.run(longest=200)
            self.world.run_for(3 * self.ttl + 1.0)  # whoever died is forgotten by then
            self.settle()
        except Stuck as stuck:
            self.wrong.append(str(stuck))
        except AssertionError as failed:
            self.wrong.append(f"{failed}: {failed.__cause__!r}")
        for slot, attempts in self.starts.items():
            if len(attempts) > self.retries + 1 or attempts != sorted(set(attempts)):
                self.wrong.append(f"slot {slot} was started as {attempts}, with retries={self.retries}")
        self.wrong += [str(found) for found in overlaps(self.holds)]
        self.world.close()
        self.counts.update(self.network.faults)
        return Outcome(self.wrong, len(self.completed), self.counts, self.world.story)

    def settle(self) -> None:
        """All faults have ended: a slot that nobody has asked for yet is run at the first call, and remembered."""
        self.faults = 0.0
        self.world.run_for(self.every)
        process, client = self.process("last", 2000)
        told = process.start(self.last(process, client), "last")
        self.world.run()
        for slot in self.completed:
            if (slot, OK) not in told.result and not any(slot in line for line in self.doubts):
                self.wrong.append(f"slot {slot} was completed, and is remembered as {told.result}")

    async def last(self, process: SimulatedRuntime, client: Client) -> set[tuple[str, str]]:
        before = len(self.completed)
        await self.call(process, client, None)
        if len(self.completed) == before:  # one slot ended, and the next began, in the middle of the call
            await self.call(process, client, None)
        if len(self.completed) == before:
            self.wrong.append("when all was over, the next slot was not run")
        return {(past.slot, past.outcome) for past in await client.once(NAME, every=self.every).history()}


class Listener(logging.Handler):
    """Keeps the lines in which the library admits a doubt."""

    def __init__(self, doubts: list[str]) -> None:
        super().__init__()
        self._doubts = doubts

    def emit(self, record: logging.LogRecord) -> None:
        if "may not be on record" in (line := record.getMessage()):
            self._doubts.append(line)


def play(seed: int, faults: float = 1.0) -> Outcome:
    history, logger = History(seed, faults), logging.getLogger("dibs")
    listener = Listener(history.doubts)
    logger.addHandler(listener)
    try:
        return history.run()
    finally:
        logger.removeHandler(listener)
