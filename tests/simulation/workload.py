"""One simulated history: a few processes want a few locks while everything fails, and what came of it is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import LeaseLost, Misuse, NotAcquired, StoreUnavailable
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.store import MemoryStore
from dibs.stores.store import Ask
from dibs.testing.faults import LISTEN, FarStore, Network, Odds, SimulatedServer
from dibs.testing.history import Hold, Write, violations, writes_out_of_order
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler, Stuck

GRACE = 0.05
"""Seconds by which an acquire may exceed its timeout."""

STUCK_FOR = 20.0
"""After so many times the ttl at whose pace a history goes all that was stuck has arrived."""


class Mix(NamedTuple):
    """Which faults a history has. Each is a probability, for one message, task or process."""

    message: float = 0.03
    late_copy: float = 0.02
    pause: float = 0.5
    crash: float = 0.25
    cancel: float = 0.3
    outage: float = 0.3
    evict: float = 0.2
    rate: float = 0.0025
    """How far each clock may be from true time: two of them differ by at most twice that."""
    stuck: float = 0.0
    """Requests that are delivered long after they were sent, also when their sender has given them up."""
    ttls: tuple[float, ...] = (0.3, 1.0, 1.0, 3.0)
    """Of which each history takes one, and goes at its pace."""
    longer: float = 1.0
    """By how much the ttl of a lock may be longer than that: what is left behind is seen then, since it stays."""
    amnesia: bool = False
    """The server restarts with an empty memory: only the fences can be right then."""
    jump: bool = False
    """The server's clocks are set forward: likewise."""


EVERYTHING = Mix()
AMNESIA = Mix(amnesia=True)
JUMP = Mix(jump=True)
STORM = Mix(message=0.1, late_copy=0.1, evict=0.4, pause=0.8, outage=0.7)
LATE = Mix(message=0.01, stuck=0.06, ttls=(0.5, 1.0), longer=60, evict=0.1, outage=0.1)
CALM = Mix(message=0, late_copy=0, pause=0, crash=0, cancel=0, outage=0, evict=0, rate=0)


class Parts(NamedTuple):
    """What the history is made of; the broken locks replace a part."""

    server: Callable[..., MemoryServer] = MemoryServer
    near: type[MemoryStore] = MemoryStore
    far: type[FarStore] = FarStore
    runtime: type[SimulatedRuntime] = SimulatedRuntime


SOUND = Parts()


class Outcome(NamedTuple):
    """What one history showed."""

    wrong: list[str]
    grants: int
    counts: Counter[str]
    story: Callable[[], str]


class Resource:
    """What the lock protects, with a guard that compares the fence; it keeps a log of all writes."""

    def __init__(self) -> None:
        self.highest = 0
        self.log: list[Write] = []

    def write(self, fence: int) -> bool:
        accepted = fence >= self.highest
        self.highest = max(self.highest, fence)
        self.log.append(Write(fence, accepted))
        return accepted


class History:
    """One run of one seed."""

    def __init__(self, seed: int, mix: Mix = EVERYTHING, parts: Parts = SOUND) -> None:
        self.mix, self.parts = mix, parts
        self.world = world = Scheduler(seed)
        self.chance = world.chance.random
        self.ttl: float = self.pick(*mix.ttls)
        self.names = ["a"] if self.chance() < 0.7 else ["a", "b"]
        self.server = SimulatedServer(world, rate=self.rate(), kind=parts.server)
        self.network = Network(world, self.server, self.odds())
        self.resources = {name: Resource() for name in self.names}
        self.holds: dict[str, list[Hold]] = {name: [] for name in self.names}
        self.open: dict[tuple[str, int], tuple[Hold, Lease, SimulatedRuntime]] = {}
        self.broken: dict[tuple[str, int], float] = {}
        self.left: dict[tuple[str, int], float] = {}
        self.kept: list[Lease] = []
        self.keepers: set[object] = set()
        """Tasks that have kept a lease which they handed over: that may be in a renewal when it is dropped at last."""
        self.abandoned: set[str] = set()
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.processes: list[tuple[SimulatedRuntime, Client]] = []
        for number in range(int(self.pick(2, 2, 3))):
            self.add_process(f"p{number}", 1000 + number)
        self.plan()

    # --- the plan ------------------------------------------------------------------------------------------

    def pick(self, *values: Any) -> Any:
        return values[int(self.chance() * len(values))]

    def rate(self) -> float:
        return 1 + self.mix.rate * (2 * self.chance() - 1)

    def odds(self) -> Odds:
        each = self.mix.message * self.pick(0, 1, 1, 3)
        return Odds(
            *(each, each, each, each, each, self.mix.late_copy * self.pick(0, 1, 2)),
            stuck=self.mix.stuck * self.pick(0, 1, 2) if self.mix.stuck else 0.0,
            lose_hint=5 * each,
            longest=1.5 * self.ttl,
            stuck_for=STUCK_FOR * self.ttl,
        )

    def add_process(self, name: str, pid: int) -> tuple[SimulatedRuntime, Client]:
        runtime = self.parts.runtime(self.world, name, pid=pid, rate=self.rate(), offset=1e5 * self.chance())
        client = Client(self.parts.far(self.network, runtime, self.parts.near), runtime)
        self.processes.append((runtime, client))
        return runtime, client

    def plan(self) -> None:
        mix, span = self.mix, 6 * self.ttl
        for process, client in self.processes:
            for number in range(int(self.pick(1, 1, 2))):
                task = process.start(self.rounds(process, client), f"t{number}")
                if self.hits(mix.cancel, "cancel planned"):
                    task.cancel_at(1 + int(self.chance() * 40), late=self.chance() < 0.5)
            if self.hits(mix.pause, "process stood still"):
                pause = self.ttl * self.pick(0.1, 0.5, 1.1, 2.0)
                self.world.call_later(span * self.chance(), partial(self.pause, process, pause))
            if self.hits(mix.crash, "crash planned"):
                process.crash_after(1 + int(self.chance() * 120))
        if self.hits(mix.evict, "operator evicts"):
            process, client = self.processes[0]
            process.start(self.operate(process, client), "operator")
        if self.hits(mix.outage, "outage"):
            self.outage(span * self.chance(), self.ttl * self.chance() ** 2 * 1.5, self.pick("refuses", "hangs"))
        if mix.amnesia:
            for _ in range(int(self.pick(1, 2))):
                self.world.call_later(span * self.chance(), self.restart)
                self.counts["server forgot everything"] += 1
        if mix.jump:
            self.world.call_later(span * self.chance(), self.jump)
            self.counts["server clock jumped"] += 1

    def hits(self, odds: float, what: str) -> bool:
        happens = self.chance() < odds
        self.counts[what] += happens
        return happens

    def outage(self, begins: float, lasts: float, how: str) -> None:
        def fail(fails: bool) -> None:
            setattr(self.server, how, fails and not self.network.healed)
            self.world.log(f"the server {how}: {fails}")

        self.world.call_later(begins, lambda: fail(True))
        self.world.call_later(begins + lasts, lambda: fail(False))

    def pause(self, process: SimulatedRuntime, seconds: float) -> None:
        if not self.network.healed:
            process.pause(seconds)

    def restart(self) -> None:
        if not self.network.healed:
            self.server.restart()

    def jump(self) -> None:
        if self.network.healed:
            return
        self.server.ahead += self.pick(0.5, 2, 60) * self.ttl

    # --- what the tasks do ---------------------------------------------------------------------------------

    async def rounds(self, process: SimulatedRuntime, client: Client) -> None:
        for _ in range(int(self.pick(1, 2, 3))):
            await process.sleep(self.ttl * self.chance() * self.pick(0, 1))
            style = self.pick(self.block, self.block, self.block, self.by_hand, self.hand_over)
            with self.refusals():
                await style(process, client, self.lock(client))

    @contextmanager
    def refusals(self) -> Iterator[None]:
        try:
            yield
        except (NotAcquired, StoreUnavailable, LeaseLost, Misuse) as error:
            if isinstance(error, Misuse) and self.world.running not in self.keepers:
                raise  # else this task keeps a lease that it has handed over, and may not ask for another
            self.counts[type(error).__name__] += 1
            self.world.log(f"got {type(error).__name__}: {error}")
            # Its frames would keep a lease: nothing here collects the cycle that contextlib makes from Python 3.12 on.
            error.with_traceback(None)

    def ttl_of_lock(self) -> float:
        longer = [self.mix.longer] if self.mix.longer > 1 else []
        return self.ttl * float(self.pick(1, 1, 0.7, *longer))

    def lock(self, client: Client) -> Any:
        ttl = self.ttl_of_lock()
        return client.lock(
            self.pick(*self.names),
            ttl=ttl,
            timeout=self.pick(None, 3 * self.ttl, self.ttl, 0.2, 0),
            max_hold=self.pick(None, None, 1.2 * max(ttl, self.ttl)),
            on_lost=self.pick("cancel", "cancel", "flag"),
        )

    async def take(self, process: SimulatedRuntime, client: Client, lock: Any, how: Callable[[], Any]) -> Lease:
        """Call *how*, and record what it gives; it must keep its timeout."""
        asked_at = self.world.now
        try:
            lease: Lease = await how()
        except (NotAcquired, StoreUnavailable) as error:
            self.check_budget(process, lock, asked_at, repr(error))
            raise
        self.check_budget(process, lock, asked_at, f"lease {lease.fence}")
        self.record(process, lease, asked_at)
        return lease

    def record(self, process: SimulatedRuntime, lease: Lease, asked_at: float) -> None:
        self.check_end(process, lease)
        hold = Hold(lease.fence, asked_at, self.world.now, who=f"{self.world.running}")
        self.world.log(f"holds {lease.name} with fence {lease.fence}")
        self.holds[lease.name].append(hold)
        self.open[lease.name, lease.fence] = (hold, lease, process)

    def check_end(self, process: SimulatedRuntime, lease: Lease) -> None:
        """The server counts at least as long as the holder, and not longer than anybody was promised."""
        held = self.server.memory.show("sim", lease.name).holders
        ends_in = next((each.expires_in for each in held if each.fence == lease.fence), None)
        if ends_in is None or lease.lost or self.mix.jump:
            return
        at_server, here = ends_in / self.server.rate, process.true(lease.lost._deadline) - self.world.now
        if at_server < here:
            self.wrong.append(f"fence {lease.fence} ends {here - at_server:.6f} s too early at the server")
        if at_server > lease.ttl * 1.01:
            self.wrong.append(f"fence {lease.fence} ends {at_server - lease.ttl:.6f} s too late at the server")

    def check_budget(self, process: SimulatedRuntime, lock: Any, asked_at: float, result: str) -> None:
        if lock._timeout is None:
            return
        budget = lock._timeout or min(5.0, lock._ttl / 2)  # a single try has the budget of one request
        took = (self.world.now - asked_at - process.stood_still(asked_at, self.world.now)) * process.rate
        if took > budget + GRACE:
            self.wrong.append(f"acquire with timeout {lock._timeout} took {took:.3f} s at {asked_at:.6f}: {result}")

    async def block(self, process: SimulatedRuntime, client: Client, lock: Any) -> None:
        entered: Lease | None = None
        left_at = self.world.now
        asked_at = self.world.now
        try:
            async with lock as lease:
                entered = lease
                self.check_budget(process, lock, asked_at, f"lease {lease.fence}")
                self.record(process, lease, asked_at)
                try:
                    await self.work(process, lease)
                finally:
                    left_at = self.leaves(lease)
        except (NotAcquired, StoreUnavailable) as error:
            self.check_budget(process, lock, asked_at, repr(error))
            raise
        finally:
            if entered is not None and not self.world.closed:
                self.ended(entered, left_at, interrupted=lock._on_lost == "cancel")

    async def by_hand(self, process: SimulatedRuntime, client: Client, lock: Any) -> None:
        lease = await self.take(process, client, lock, lock.acquire)
        left_at = self.world.now
        try:
            await self.work(process, lease)
        finally:
            left_at = self.leaves(lease)
            if not self.world.closed:
                try:
                    await self.release(process, lease)
                finally:
                    self.ended(lease, left_at)

    async def release(self, process: SimulatedRuntime, lease: Lease) -> None:
        for _ in range(2):
            try:
                return await lease.release()
            except StoreUnavailable:
                continue
        return None

    async def hand_over(self, process: SimulatedRuntime, client: Client, lock: Any) -> None:
        lease = await self.take(process, client, lock, lock.acquire)
        hold = self.open[lease.name, lease.fence][0]
        text, handed_at = lease.to_str(), self.world.now
        self.abandoned.add(lease.token)  # nobody but the heir gives it back, and the heir may not come to it
        try:
            if self.chance() < 0.3:
                self.keepers.add(self.world.running)
                self.kept.append(lease)  # this process goes on renewing it for a while, beside the heir
                self.world.call_later(2 * self.ttl, self.drop_one)
            elif self.chance() < 0.5:
                await lease.detach()
                handed_at = self.world.now
        finally:
            hold.valid_until = process.true(lease.lost._deadline)
            hold.left(min(handed_at, hold.valid_until))
            self.open.pop((lease.name, lease.fence), None)
        heir, theirs = self.pick(*self.processes)
        if heir is not process and not heir.dead:
            heir.start(self.inherit(heir, theirs, text, hold), "heir")

    def drop_one(self) -> None:
        del self.kept[:1]

    async def inherit(self, process: SimulatedRuntime, client: Client, text: str, hold: Hold) -> None:
        with self.refusals():
            lease = await client.resume(text)
            self.world.log(f"resumed fence {lease.fence}")
            self.open[lease.name, lease.fence] = (hold, lease, process)
            left_at = self.world.now
            try:
                await self.work(process, lease)
            finally:
                left_at = self.leaves(lease)
                if not self.world.closed:
                    try:
                        await self.release(process, lease)
                    finally:
                        self.ended(lease, left_at)

    async def work(self, process: SimulatedRuntime, lease: Lease) -> None:
        resource = self.resources[lease.name]
        length = self.ttl * self.pick(0.02, 0.02, 0.3, 0.9, 1.6)
        for _ in range(int(self.pick(1, 2, 3))):
            if lease.lost:
                return
            self.counts["write accepted" if resource.write(lease.fence) else "stale write refused"] += 1
            await process.sleep(length * self.chance())
            if self.chance() < 0.1:
                with self.refusals():
                    await lease.renew()
            self.check_end(process, lease)
        if not lease.lost:
            self.counts["write accepted" if resource.write(lease.fence) else "stale write refused"] += 1

    async def operate(self, process: SimulatedRuntime, client: Client) -> None:
        await process.sleep(6 * self.ttl * self.chance())
        with self.refusals():
            for holder in await client.holders():
                self.broken.setdefault((holder.name, holder.fence), self.world.now)
                await client.evict(holder.name, fence=holder.fence, reason="simulated")

    def leaves(self, lease: Lease) -> float:
        """From now on the holder does not rely on *lease*, whatever becomes of giving it back."""
        if not self.world.closed:
            self.left[lease.name, lease.fence] = self.world.now
            self.world.log(f"leaves {lease.name}, fence {lease.fence}")
        return self.world.now

    # --- what came of it -----------------------------------------------------------------------------------

    def ended(self, lease: Lease, stopped_at: float, *, interrupted: bool = False) -> None:
        """The hold of *lease* is over for its holder; read from the lease how. *interrupted*: a loss would have."""
        hold, _, process = self.open.pop((lease.name, lease.fence))
        hold.valid_until = process.true(lease.lost._deadline)
        hold.still_until = max((end for begin, end in process.stops if begin <= stopped_at), default=hold.still_until)
        if lease.lost_reason is not None:
            told_at = stopped_at if interrupted else min(stopped_at, hold.valid_until)
            hold.found_lost(told_at, self.world.now)
        elif lease._undelivered or not lease._given_up:
            hold.left(stopped_at)
        else:
            hold.given_back(stopped_at, self.world.now)

    def run(self) -> Outcome:
        try:
            self.world.run(longest=60 + 60 * self.ttl + 9 * self.longest_ttl())
            self.settle()
        except Stuck as stuck:
            self.wrong.append(str(stuck))
        except AssertionError as failed:
            self.wrong.append(f"{failed}: {failed.__cause__!r}")
        self.close_open_holds()
        exclusive = not self.mix.amnesia and not self.mix.jump
        for name, holds in self.holds.items():
            for hold in holds:
                if (name, hold.fence) in self.broken:
                    hold.broken(self.broken[name, hold.fence])
            self.wrong += [f"{name}: {found}" for found in self.judge(name, holds, exclusive)]
        self.world.close()
        self.counts.update(self.network.faults)
        grants = sum(len(holds) for holds in self.holds.values())
        return Outcome(self.wrong, grants, self.counts, self.world.story)

    def judge(self, name: str, holds: list[Hold], exclusive: bool) -> list[Any]:
        """What is wrong with the *holds* of *name*. Not *exclusive*: the store forgot them."""
        return [*violations(holds, exclusive=exclusive), *writes_out_of_order(self.resources[name].log)]

    def close_open_holds(self) -> None:
        for hold, lease, process in list(self.open.values()):
            hold.valid_until = process.true(lease.lost._deadline)
            left_at = self.left.get((lease.name, lease.fence), process.died_at)
            hold.left(min(left_at, hold.valid_until))
        self.open.clear()

    def settle(self) -> None:
        """All faults have ended: whatever nobody holds any more must be given back, and then everybody served."""
        self.kept.clear()
        self.network.heal()
        while not all(process.runs or process.dead for process, _ in self.processes):
            self.world.run_for(0.5)
        self.world.run_for(2.5)
        if self.mix.stuck:
            self.world.run_for(STUCK_FOR * self.ttl)
        if self.mix.stuck or self.ttl >= 3.0:
            self.look_for_orphans()
        self.world.run_for(1.5 * self.ttl)  # until the last late copy has arrived
        probe, client = self.add_process("probe", 2000)
        self.processes.remove((probe, client))
        tickets = sum(len(self.server.memory.show("sim", name).waiting) for name in self.names)
        within = 1.02 * self.longest_ttl() + 0.15 * (tickets + 1) + LISTEN
        for name in self.names:
            probe.start(self.probe(client, name, within), f"probe {name}")
        for process, client in self.processes:
            if not process.dead and self.chance() < 0.3:
                process.start(client.close(), "close")
        self.world.run()
        self.world.run_for(self.longest_ttl() * 1.02 + 2.5)
        if self.world.tasks:
            self.wrong.append(f"tasks are left:\n{self.world.waiting()}")
        for name in self.names:
            holder = self.server.memory.show("sim", name).holder
            if holder is not None:
                self.wrong.append(f"{name} is held for ever by {holder}")

    def longest_ttl(self) -> float:
        return self.ttl * max(1.0, self.mix.longer)

    async def probe(self, client: Client, name: str, within: float) -> None:
        try:
            lease = await client.lock(name, ttl=self.ttl).acquire(timeout=within)
        except NotAcquired as error:
            self.wrong.append(f"when all was over, {name} was not free within {within:.2f} s: {error}")
        else:
            await lease.release()

    def look_for_orphans(self) -> None:
        """No grant and no ticket is left that nobody knows of."""
        dead = {process.name for process, _ in self.processes if process.dead}
        granted = {ask.token: (ask, when, who) for when, _, who, ask in self.network.calls if isinstance(ask, Ask)}
        released = {facts: when for when, what, _, facts in self.network.calls if what == "release"}
        for ask, when, who in granted.values():
            given_back_at = released.get((ask.name, ask.token), -1.0)
            known = ask.token in self.abandoned or ask.token in self.network.late
            if self.mix.amnesia or self.mix.jump:  # the server may know no more that it was given back
                known = known or 0 <= given_back_at < when
            if who not in dead and not known and self.still_there(ask):
                what = "lives again" if given_back_at >= when else "was never given back"
                self.wrong.append(f"an orphan: the ask of {who} at {when:.6f} for {ask.name} {what}")

    def still_there(self, ask: Ask) -> bool:
        """Whether the server still has something for this token; it is released, to see."""
        return self.server.memory.release("sim", ask.name, ask.token) is None


def play(seed: int, mix: Mix = EVERYTHING, parts: Parts = SOUND) -> Outcome:
    return History(seed, mix, parts).run()
