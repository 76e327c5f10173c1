"""One simulated history of an election: candidates campaign and lead while everything fails, and what came of it.

Some leaders stop at once when they are told, some take their time, and some ignore it. All write to a resource with a
guard as long as they work.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from workload import Resource

from dibs.core.client import Client
from dibs.core.election.election import Election
from dibs.core.election.term import Term
from dibs.errors import LossReason, StoreUnavailable
from dibs.testing.faults import FarStore, Network, Odds, SimulatedServer
from dibs.testing.history import Hold, violations, writes_out_of_order
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Cancelled, Scheduler, Stuck

NAME = "scheduler"
LATE = 0.002
"""Seconds by which a leader may be told late: one step of the simulation."""


class Faults(NamedTuple):
    """Which faults a history has; each is a probability, for one message or process."""

    message: float = 0.04
    pause: float = 0.5
    crash: float = 0.3
    outage: float = 0.5
    evict: float = 0.3
    stop: float = 0.2
    deaf: float = 0.5
    """How often the work of a term is slow to stop, or ignores it."""
    amnesia: float = 0.0
    rate: float = 0.0025


EVERY_FAULT = Faults()
NO_FAULT = Faults(*[0.0] * 9)
FORGETS = Faults(amnesia=1.0)


class Outcome(NamedTuple):
    wrong: list[str]
    terms: int
    counts: Counter[str]
    story: Any


class Campaign:
    """One run of one seed."""

    def __init__(self, seed: int, faults: Faults) -> None:
        self.faults, self.world = faults, Scheduler(seed)
        self.chance = self.world.chance.random
        self.ttl: float = self.pick(0.4, 1.0, 3.0)
        self.server = SimulatedServer(self.world, rate=self.rate())
        each = faults.message * self.pick(0, 1, 3)
        self.network = Network(
            self.world,
            self.server,
            Odds(*(each, each, each, each, each, each), lose_hint=5 * each, longest=1.5 * self.ttl),
        )
        self.resource, self.holds = Resource(), dict[int, Hold]()
        self.terms: dict[int, tuple[SimulatedRuntime, Term]] = {}
        self.broken: dict[int, float] = {}
        self.wrong, self.counts = list[str](), Counter[str]()
        self.candidates = [self.candidate(number) for number in range(int(self.pick(2, 3, 3)))]
        self.plan()

    def pick(self, *values: Any) -> Any:
        return values[int(self.chance() * len(values))]

    def rate(self) -> float:
        return 1 + self.faults.rate * (2 * self.chance() - 1)

    def candidate(self, number: int) -> tuple[SimulatedRuntime, Client, Election]:
        process = SimulatedRuntime(
            self.world, f"c{number}", pid=1000 + number, rate=self.rate(), offset=1e5 * self.chance()
        )
        client = Client(FarStore(self.network, process), process)
        election = client.election(NAME, ttl=self.ttl, candidate=process.name, on_stuck=self.pick("log", "log", "exit"))
        return process, client, election

    def plan(self) -> None:
        faults, span = self.faults, 8 * self.ttl
        for process, _, election in self.candidates:
            process.start(election.run(partial(self.work, process)), "run")
            if self.hits(faults.pause, "stood still"):
                pause = self.ttl * self.pick(0.3, 0.8, 1.2, 2.0)
                self.world.call_later(span * self.chance(), partial(process.pause, pause))
            if self.hits(faults.crash, "crashed"):
                process.crash_after(20 + int(self.chance() * 200))
            if self.hits(faults.stop, "stopped"):
                self.world.call_later(span * self.chance(), election.stop)
        if self.hits(faults.outage, "outage"):
            self.outage(span * self.chance(), 1.5 * self.ttl * self.chance(), self.pick("refuses", "hangs"))
        if self.hits(faults.evict, "evicted"):
            process, client, _ = self.candidates[0]
            process.start(self.operate(process, client), "operator")
        if self.hits(faults.amnesia, "forgot everything"):
            self.world.call_later(span * self.chance(), self.server.restart)

    def hits(self, odds: float, what: str) -> bool:
        happens = self.chance() < odds
        self.counts[what] += happens
        return happens

    def outage(self, begins: float, lasts: float, how: str) -> None:
        def fail(fails: bool) -> None:
            setattr(self.server, how, fails and not self.network.healed)

        self.world.call_later(begins, lambda: fail(True))
        self.world.call_later(begins + lasts, lambda: fail(False))

    async def operate(self, process: SimulatedRuntime, client: Client) -> None:
        await process.sleep(6 * self.ttl * self.chance())
        try:
            for holder in await client.holders():
                self.broken.setdefault(holder.fence, self.world.now)
                await client.evict(holder.name, fence=holder.fence, reason="simulated")
        except StoreUnavailable:
            self.counts["operator refused"] += 1

    # --- the work of a leader ------------------------------------------------------------------------------

    async def work(self, process: SimulatedRuntime, term: Term) -> None:
        hold = self.holds[term.fence] = Hold(term.fence, 0.0, self.world.now, who=term.candidate)
        self.terms[term.fence] = process, term
        self.world.log(f"leads, term {term.fence}")
        stops_by_itself = self.world.now + self.ttl * self.pick(0.2, 3.0, 100.0)
        deaf_for = self.ttl * self.pick(0.1, 0.6, 3.0) if self.chance() < self.faults.deaf else 0.0
        told_at = None
        try:
            while self.world.now < stops_by_itself:
                self.write(term)
                await process.sleep(self.ttl * 0.1 * (0.5 + self.chance()))
        except Cancelled:
            told_at = self.world.now
            self.was_told(process, term)
            await self.go_on_in_spite(process, term, deaf_for)
            if not deaf_for:
                raise
        finally:
            if not self.world.closed and not process.dead:
                self.has_stopped(process, term, hold, told_at)

    async def go_on_in_spite(self, process: SimulatedRuntime, term: Term, deaf_for: float) -> None:
        until = self.world.now + deaf_for
        while self.world.now < until:
            self.counts["worked on in spite"] += 1
            self.write(term)
            await process.sleep(self.ttl * 0.1)

    def write(self, term: Term) -> None:
        self.counts["write accepted" if self.resource.write(term.fence) else "stale write refused"] += 1

    def was_told(self, process: SimulatedRuntime, term: Term) -> None:
        """Told in time: before the lease ends, unless the store gave it away or nothing could be told."""
        self.counts[f"told: {term.lost_reason}"] += 1
        began_at = self.holds[term.fence].granted_at  # the grant may have come late
        due = max(process.true(term.lost._deadline), self.still_until(process), began_at)
        if term.lost_reason is LossReason.EXPIRED and self.world.now > due + LATE:
            self.wrong.append(f"term {term.fence} was told at {self.world.now:.6f}, due {due:.6f}")

    def has_stopped(self, process: SimulatedRuntime, term: Term, hold: Hold, told_at: float | None) -> None:
        self.world.log(f"has stopped, term {term.fence}")
        hold.valid_until = process.true(term._lease.lost._deadline)
        hold.still_until = self.still_until(process)
        hold.left(min(self.world.now, hold.valid_until))
        hold.stopped_at = self.world.now if told_at is None else told_at
        self.terms.pop(term.fence)

    def still_until(self, process: SimulatedRuntime) -> float:
        return max((end for begin, end in process.stops if begin <= self.world.now), default=-1.0)

    # --- what came of it -----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            self.world.run_for(8 * self.ttl)
            self.settle()
        except Stuck as stuck:
            self.wrong.append(str(stuck))
        except AssertionError as failed:
            self.wrong.append(f"{failed}: {failed.__cause__!r}")
        for fence, (process, term) in self.terms.items():  # the process has vanished
            hold = self.holds[fence]
            hold.valid_until = process.true(term._lease.lost._deadline)
            hold.left(min(process.died_at, hold.valid_until))
        for fence, broken_at in self.broken.items():
            if fence in self.holds:
                self.holds[fence].broken(broken_at)
        forgot = self.counts["forgot everything"] > 0
        self.wrong += [str(found) for found in violations(list(self.holds.values()), exclusive=not forgot)]
        self.wrong += writes_out_of_order(self.resource.log)
        self.world.close()
        self.counts.update(self.network.faults)
        return Outcome(self.wrong, len(self.holds), self.counts, self.world.story)

    def settle(self) -> None:
        """All faults have ended: somebody leads soon, everybody can be stopped, and then the place is vacant."""
        self.network.heal()
        while not all(process.runs or process.dead for process, _, _ in self.candidates):
            self.world.run_for(0.2)
        self.world.run_for(1.5 * self.ttl)  # until the last late copy has arrived
        self.world.run_for(6.0 * self.ttl + 2.5)  # longer than anybody is deaf
        alive = [(process, election) for process, _, election in self.candidates if not process.dead]
        hopeful = [election for _, election in alive if not election._stopped]
        if hopeful and not self.leads_within(3 * self.ttl):
            self.wrong.append(f"nobody leads, although {len(hopeful)} could:\n{self.world.waiting()}")
        for _, election in alive:
            election.stop()
        self.world.run(longest=60 + 20 * self.ttl)
        self.world.run_for(1.1 * self.ttl + 2.5)
        holder = self.server.memory.show("sim", NAME).holder
        if holder is not None:
            self.wrong.append(f"when all was over, the place was held by {holder}")
        if self.world.tasks:
            self.wrong.append(f"tasks are left:\n{self.world.waiting()}")

    def leads_within(self, seconds: float) -> bool:
        """Between two terms there is a pause, so it is looked at for a while."""
        end = self.world.now + seconds
        while self.world.now < end:
            if self.server.memory.show("sim", NAME).holder is not None:
                return True
            self.world.run_for(0.02 * self.ttl)
        return False


def campaign(seed: int, faults: Faults = EVERY_FAULT) -> Outcome:
    return Campaign(seed, faults).run()
