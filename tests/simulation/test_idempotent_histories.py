"""Seeded histories of idempotent calls with every fault on: what was done is not begun again, and all get one result.

Processes stand still in the middle of the work and finish late, die between any two requests, are cancelled and
evicted, while requests and answers are lost, doubled and late. ``DIBS_SIM_SEEDS=100000`` plays more of them: see
`seeds`.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from seeds import SEEDS, chunks

from dibs.core.client import Client
from dibs.errors import LeaseLost, LossReason, NotAcquired, StoreUnavailable
from dibs.holder import Record
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.store import Ask, Busy, Claim, Grant
from dibs.testing.faults import FarStore, Network, Odds, SimulatedServer
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler, Stuck

TTL = 1.0
KEY = "charge"


class WorkFailed(Exception):
    """The work itself failed: its effect did not happen."""


class History:
    """One run of one seed: a few processes call with one key until they have a result."""

    def __init__(self, seed: int, server: type[MemoryServer] = MemoryServer, far: type[FarStore] = FarStore) -> None:
        self.world = world = Scheduler(seed)
        self.chance = world.chance.random
        each, late = 0.05 * self.pick(0, 1, 3), 0.03 * self.pick(0, 1, 2)
        odds = Odds(*(each, each, each, each, each, late), lose_hint=5 * each, longest=1.5 * TTL)
        self.server = SimulatedServer(world, kind=server)
        self.network = Network(world, self.server, odds)
        self._far = far
        self.begun: list[int] = []
        """Fences under which the work was begun."""
        self.results: list[int] = []
        """What callers were told: the fence of whoever did the work."""
        self.finished: list[int] = []
        """Fences whose block ended well."""
        self.refused: list[int] = []
        """Fences whose result was refused."""
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.processes = [self.process(f"p{number}", 1000 + number) for number in range(int(self.pick(2, 3, 4)))]
        self.plan()

    def pick(self, *values: Any) -> Any:
        return values[int(self.chance() * len(values))]

    def process(self, name: str, pid: int) -> tuple[SimulatedRuntime, Client]:
        runtime = SimulatedRuntime(self.world, name, pid=pid, offset=1e5 * self.chance())
        return runtime, Client(self._far(self.network, runtime), runtime)

    def plan(self) -> None:
        for process, client in self.processes:
            for number in range(int(self.pick(1, 2))):
                task = process.start(self.calls(process, client), f"t{number}")
                if self.chance() < 0.3:
                    task.cancel_at(1 + int(self.chance() * 40), late=self.chance() < 0.5)
            if self.chance() < 0.6:
                stop = TTL * self.pick(0.5, 1.1, 2.0)
                self.world.call_later(4 * TTL * self.chance(), partial(self.pause, process, stop))
            if self.chance() < 0.3:
                process.crash_after(1 + int(self.chance() * 80))
        if self.chance() < 0.7:
            process, client = self.processes[0]
            process.start(self.evict(process, client), "operator")

    def pause(self, process: SimulatedRuntime, seconds: float) -> None:
        if not self.network.healed:
            process.pause(seconds)

    async def calls(self, process: SimulatedRuntime, client: Client) -> None:
        for _ in range(6):
            await process.sleep(TTL * self.chance() * self.pick(0, 1))
            try:
                await self.call(process, client)
                break
            except (NotAcquired, StoreUnavailable, LeaseLost, WorkFailed) as error:
                self.counts[type(error).__name__] += 1
                self.world.log(f"got {type(error).__name__}: {error}")

    async def call(self, process: SimulatedRuntime, client: Client) -> None:
        timeout, on_lost = self.pick(None, 0, TTL), self.pick("cancel", "flag")
        fence = 0
        try:
            async with client.idempotent(KEY, ttl=TTL, timeout=timeout, on_lost=on_lost) as call:
                if not call.replayed:
                    fence = call.fence
                    self.begun.append(fence)
                    self.world.log(f"begins the work, fence {fence}")
                    await process.sleep(TTL * self.pick(0.02, 0.3, 1.6) * self.chance())
                    if self.chance() < 0.2:
                        raise WorkFailed
                    call.done(fence)
        except LeaseLost:
            if fence:
                self.refused.append(fence)
            raise
        if fence:
            self.finished.append(fence)
        self.counts["replay" if call.replayed else "done"] += 1
        self.results.append(call.result)

    async def evict(self, process: SimulatedRuntime, client: Client) -> None:
        await process.sleep(3 * TTL * self.chance())
        try:
            for holder in await client.holders():
                self.counts["evicted"] += await client.evict(holder.name, fence=holder.fence)
        except StoreUnavailable:
            pass

    def run(self) -> None:
        try:
            self.world.run(longest=120)
            self.network.heal()
            while not all(process.runs or process.dead for process, _ in self.processes):
                self.world.run_for(0.5)
            self.world.run_for(5 * TTL)  # until the last lease, and the last late copy, is over
            probe, client = self.process("probe", 2000)
            probe.start(self.probe(client), "probe")
            self.world.run()
        except Stuck as stuck:
            self.wrong.append(str(stuck))
        finally:
            self.world.close()
        self.counts.update(self.network.faults)
        self.check()

    async def probe(self, client: Client) -> None:
        async with client.idempotent(KEY, timeout=10 * TTL) as call:
            if not call.replayed:
                self.begun.append(call.fence)
                call.done(call.fence)
        self.results.append(call.result)

    def check(self) -> None:
        if len(set(self.results)) != 1:
            self.wrong.append(f"callers were told different results: {sorted(set(self.results))}")
        recorded = self.results[-1] if self.results else 0
        if recorded != max(self.begun, default=0):
            self.wrong.append(f"work was begun under {max(self.begun)}, after {recorded} was recorded as done")
        if len(self.finished) > 1:
            self.wrong.append(f"more than one was told that it had done the work: {self.finished}")
        if recorded in self.refused:
            self.wrong.append(f"the result of {recorded} was recorded, and refused")


def played(seed: int, **parts: Any) -> History:
    history = History(seed, **parts)
    history.run()
    return history


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The core logs a warning for each release that was not delivered."""
    logging.getLogger("dibs").disabled = True
    gc.disable()
    yield
    gc.enable()
    logging.getLogger("dibs").disabled = False


@pytest.mark.parametrize("seeds", [*chunks(SEEDS / 4, 500)], ids=str)
def test_no_history_does_again_what_was_done(seeds: range) -> None:
    for seed in seeds:
        history = played(seed)
        assert not history.wrong, f"seed {seed}: {history.wrong[0]}\n{history.world.story()}"


def test_the_histories_have_every_fault_and_every_end() -> None:
    counts: Counter[str] = Counter()
    again = refused = 0
    for seed in range(300):
        history = played(seed)
        counts.update(history.counts)
        again += len(history.begun) > 1
        refused += bool(history.refused)
    expected = {"done", "replay", "WorkFailed", "NotAcquired", "LeaseLost", "request lost", "reply lost", "evicted"}
    expected |= {"request doubled", "request carried out again, much later", "OutcomeUnknown"}
    assert {what for what in expected if counts[what] < 10} == set()
    assert again > 50, "an attempt was followed by another"
    assert refused > 20, "somebody came late"


# --- broken on purpose: the checks have to find it ------------------------------------------------------------------


class WritesWithoutCompare(MemoryServer):
    """Whoever finishes is recorded, whoever holds the lock: an UPDATE by the key alone."""

    def _remember(self, space: str, name: str, token: str, fence: int, data: bytes, keep: float) -> LossReason | None:
        self._shelf.put(space, name, token, fence, data, keep)
        return None


class LooksBeforeItTakes(FarStore):
    """A SELECT, and then an INSERT: another may finish in between."""

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        record = await self.record(ask.name, within)
        return record if record is not None and record.fence > after else await self.grant(ask, within)


class GivesBackFirst(FarStore):
    """The lock is given back, and then the record is written."""

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        reason = await self.release(claim.name, claim.token, within)
        memory = self._network.server.memory
        memory._shelf.put("sim", claim.name, claim.token, claim.fence, data, keep)
        return reason


class ForgetsTheFailed(FarStore):
    """Who has seen a failure takes the lock without a look at what happened since."""

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        return await (self.grant(ask, within) if after else super().grant_unless_recorded(ask, after, within))


@pytest.mark.parametrize(
    "parts",
    [
        *({"server": WritesWithoutCompare}, {"far": LooksBeforeItTakes}, {"far": GivesBackFirst}),
        {"far": ForgetsTheFailed},
    ],
    ids=lambda parts: next(iter(parts.values())).__name__,
)
def test_a_broken_store_is_found_out(parts: dict[str, Any]) -> None:
    assert any(played(seed, **parts).wrong for seed in range(2000))
