"""Seeded histories of a Redlock with every fault on: no fence is given twice, none falls, nobody holds it twice.

``DIBS_SIM_SEEDS=100000`` plays more of them: see `seeds`. A failure names its seed and tells its story.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest
from redlock_nodes import Everywhere, Held, Stores, key_of
from seeds import SEEDS, chunks
from workload import EVERYTHING, STORM, History, Mix, Outcome, Parts

from dibs.core.lease import Lease
from dibs.errors import StoreUnavailable
from dibs.stores.redlock import vote
from dibs.stores.redlock.options import RedlockOptions
from dibs.stores.redlock.store import RedlockStore
from dibs.stores.redlock.vote import Verdict
from dibs.stores.store import Ask, Grant
from dibs.testing.faults import Network, Odds, SimulatedServer
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler

T = TypeVar("T")

PART = SEEDS / 15
"""Histories that a test plays at the most: one with several nodes takes its time."""


class Counts(RedlockStore):
    """Proposes no fence, so that nodes which missed a grant disagree, and the second round is needed."""

    def __init__(self, *made_of: Any) -> None:
        super().__init__(*made_of)
        self._granting.proposal = lambda: 0


class RedlockHistory(History):
    """One run of one seed, on three or five nodes."""

    def __init__(self, seed: int, mix: Mix, stores: Stores, *, forgets: int = 0, jumps: bool = False) -> None:
        self.stores, self.forgets, self.jumps = stores, forgets, jumps
        parts: Any = Parts(server=Everywhere, far=stores)  # type: ignore[arg-type]
        super().__init__(seed, mix, parts)

    def plan(self) -> None:
        super().plan()
        crew, span = self.crew, 6 * self.ttl
        for number in range(self.forgets):
            self.world.call_later(span * self.chance(), partial(self.forget, number))
        if self.jumps:
            self.world.call_later(span * self.chance(), partial(self.set_ahead, crew.servers[0]))

    def set_ahead(self, server: Any) -> None:
        if not self.network.healed:
            server.ahead = self.ttl

    def forget(self, number: int) -> None:
        """A node loses its memory, unless some have not even heard so far that they belong together."""
        if all(node.facts["set"] or node.facts["id"] != f"node {at}" for at, node in enumerate(self.crew.nodes)):
            self.crew.forget(number)

    @property
    def crew(self) -> Any:
        return self.stores.crews[self.network]

    def jump(self) -> None:
        """One node's clocks are set forward; see `plan`."""

    def outage(self, begins: float, lasts: float, how: str) -> None:
        """Some of the nodes fail, sometimes so many that nobody can have the lock."""
        servers = self.crew.servers
        for server in servers[: 1 + int(self.chance() * len(servers))]:

            def fail(fails: bool, server: Any = server) -> None:
                setattr(server, how, fails and not self.network.healed)

            self.world.call_later(begins, partial(fail, True))
            self.world.call_later(begins + lasts, partial(fail, False))

    def check_end(self, process: SimulatedRuntime, lease: Lease) -> None:
        if not self.forgets and not self.jumps:  # else what is shown is the end of fewer votes than were given
            super().check_end(process, lease)

    def settle(self) -> None:
        for server in self.crew.servers:
            server.refuses = server.hangs = False
        super().settle()


def play(seed: int, mix: Mix, count: int, kind: type[RedlockStore] = RedlockStore, **faults: Any) -> Outcome:
    return RedlockHistory(seed, mix, Stores(count, kind), **faults).run()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.getLogger("dibs").disabled = True
    gc.disable()
    yield
    gc.enable()
    logging.getLogger("dibs").disabled = False


def all_are_right(seeds: range, mix: Mix, count: int, **how: Any) -> None:
    for seed in seeds:
        outcome = play(seed, mix, count, **how)
        assert not outcome.wrong, f"seed {seed}: {outcome.wrong[0]}\n{outcome.story()}"


@pytest.mark.parametrize("seeds", [*chunks(0.5 * PART, 100)], ids=str)
@pytest.mark.parametrize("count", [3, 5])
def test_no_history_breaks_a_rule(seeds: range, count: int) -> None:
    all_are_right(seeds, STORM if seeds.start // 100 % 2 else EVERYTHING, count)


@pytest.mark.parametrize("seeds", [*chunks(0.4 * PART, 100)], ids=str)
@pytest.mark.parametrize("count", [3, 5])
def test_fences_rise_without_proposals_too(seeds: range, count: int) -> None:
    all_are_right(seeds, STORM, count, kind=Counts)


@pytest.mark.parametrize("seeds", [*chunks(0.4 * PART, 100)], ids=str)
@pytest.mark.parametrize(("count", "forgets"), [(3, 1), (5, 2)])
def test_a_minority_that_forgets_changes_nothing(seeds: range, count: int, forgets: int) -> None:
    """Neither the fences nor who holds the lock."""
    all_are_right(seeds, STORM, count, kind=Counts, forgets=forgets)


@pytest.mark.parametrize("seeds", [*chunks(0.2 * PART, 100)], ids=str)
def test_fences_rise_over_a_clock_that_jumps(seeds: range) -> None:
    """Two may hold the lock then, but their fences tell them apart."""
    all_are_right(seeds, STORM._replace(jump=True), 3, jumps=True)


def test_the_highest_of_a_quorum_is_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks find what is wrong with a Redlock that takes the maximum and has it not confirmed."""

    def unconfirmed(said: Sequence[int], quorum: int) -> Verdict:
        return Verdict.WON if vote.votes(said) >= quorum else real(said, quorum)

    real = vote.verdict
    monkeypatch.setattr(vote, "verdict", unconfirmed)
    wrong = [found for seed in range(300) for found in play(seed, STORM, 3, kind=Counts).wrong]
    assert any("two grants have one fence" in found for found in wrong)


def test_the_histories_have_every_outcome() -> None:
    counts: Counter[str] = Counter()
    grants = 0
    for seed in range(200):
        outcome = play(seed, STORM, 3)
        counts.update(outcome.counts)
        grants += outcome.grants
    expected = {"NotAcquired", "LeaseLost", "OutcomeUnknown", "StoreUnavailable", "reply lost"}
    assert {what for what in expected if counts[what] < 3} == set()
    assert grants > 300


# --- named schedules ---------------------------------------------------------------------------------------------


class Lab:
    """Five nodes, and what a test says happens to them."""

    def __init__(self, count: int = 5, **options: Any) -> None:
        self.world = Scheduler(1)
        network = Network(self.world, SimulatedServer(self.world), Odds())
        self.stores = Stores(count, options=RedlockOptions(**options))
        self.process = SimulatedRuntime(self.world, "p", pid=1000)
        self.store = self.stores(network, self.process)
        self.crew = self.stores.crews[network]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        task = self.process.start(main, "main")
        self.world.run()
        return task.result  # type: ignore[no-any-return]

    def ask(self, ttl: float = 1.0) -> Ask:
        return Ask("invoice", self.process.token(), ttl, "", queue=False)

    def unreachable(self, *nodes: int) -> None:
        for number, server in enumerate(self.crew.servers):
            server.refuses = number in nodes

    async def granted(self, **how: Any) -> int:
        """The fence, asked for until there is one; the grant is left to end by itself."""
        while True:
            try:
                answer = await self.store.grant(self.ask(**how), 5.0)
            except StoreUnavailable:
                answer = None
            if isinstance(answer, Grant):
                return answer.fence
            await self.process.sleep(0.3)


@pytest.mark.parametrize("policy", ["wait", "vote"])
def test_a_node_that_forgot_between_two_quorums_does_not_make_the_fence_fall(policy: str) -> None:
    """A holds on nodes 0, 1, 2; node 2 forgets; B can only reach 2, 3, 4."""
    lab = Lab(lost_memory=policy)

    async def main() -> None:
        await lab.granted()  # so that all know that they belong together
        await lab.process.sleep(2)
        lab.unreachable(3, 4)
        first = await lab.granted()
        lab.crew.forget(2)
        await lab.process.sleep(2)
        lab.unreachable(0, 1)
        began = lab.process.now()
        if policy == "wait":
            with pytest.raises(StoreUnavailable, match="2 of 5 nodes gave their vote"):
                await lab.store.grant(lab.ask(), 1.0)
            lab.world.call_later(1.0, lab.unreachable)
        assert await lab.granted() > first
        assert lab.process.now() - began < 2.5

    lab.run(main())


def test_a_node_that_forgot_votes_again_after_it_has_waited_with_the_fences_of_the_others() -> None:
    lab = Lab(count=3)

    async def main() -> None:
        fence = await lab.granted(ttl=10.0)
        await lab.process.sleep(10)
        lab.crew.forget(0)
        for _ in range(40):
            await lab.granted(ttl=0.2)
            state = await lab.store.show("invoice", 1.0)
            if not state.remarks:
                break
            assert "node0: lost its memory" in state.remarks[0] or "is new" in state.remarks[0]
            assert not lab.crew.node(0).fences
            await lab.process.sleep(0.5)
        assert lab.process.now() > 10 + 10, "the longest ttl has passed"
        assert lab.crew.node(0).facts["floor"] >= fence

    lab.run(main())


def test_a_majority_that_forgot_rests_until_it_is_reseeded() -> None:
    lab = Lab(count=3)

    async def main() -> None:
        fence = await lab.granted()
        lab.crew.forget(0)
        lab.crew.forget(1)
        for _ in range(30):
            with pytest.raises(StoreUnavailable):
                await lab.store.grant(lab.ask(), 1.0)
            await lab.process.sleep(1)
        await lab.store.reseed(fence + 10**9, 5.0)
        assert await lab.granted() > fence + 10**9

    lab.run(main())


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_lock_is_granted_exactly_when_a_quorum_is_free(count: int) -> None:
    """Every subset of the nodes is held by somebody else."""
    for taken in range(2**count):
        lab = Lab(count=count)

        async def main(lab: Lab = lab, taken: int = taken) -> None:
            await lab.granted(ttl=0.1)
            await lab.process.sleep(0.2)
            for number, node in enumerate(lab.crew.nodes):
                if taken >> number & 1:
                    node.locks[key_of("invoice")] = Held(b"other", 1, 1, 0, b"h:1:u:", node._now() + 60)
            answer = await lab.store.grant(lab.ask(), 1.0)
            free = count - taken.bit_count()
            assert isinstance(answer, Grant) == (2 * free > count)
            await lab.process.sleep(0.1)
            left = [node.held(key_of("invoice")) for node in lab.crew.nodes]
            ours = sum(held is not None and held.token != b"other" for held in left)
            assert ours == (free if 2 * free > count else 0), "what was not won was given back"

        lab.run(main())
        lab.world.close()
