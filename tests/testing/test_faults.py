"""The bad network does to messages what it says, and no more."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.stores.store import Ask, Busy, Grant
from dibs.testing.faults import FarStore, Network, Odds, SimulatedServer
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler

ASK = Ask("x", "token", 3.0, "", False)


class Wire:
    """One process before one server."""

    def __init__(self, odds: Odds) -> None:
        self.world = Scheduler(1)
        self.server = SimulatedServer(self.world)
        self.network = Network(self.world, self.server, odds)
        self.process = SimulatedRuntime(self.world, "p")
        self.store = FarStore(self.network, self.process)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        task = self.process.start(main, "main")
        self.world.run()
        return task.result

    def carried_out(self) -> int:
        self.world.run_for(10)
        return len(self.network.calls)


def test_without_faults_an_answer_comes_after_two_ways() -> None:
    wire = Wire(Odds(trip=0.01))
    assert isinstance(wire.run(wire.store.grant(ASK, 1.0)), Grant)
    assert 0.004 < wire.world.now <= 0.02


@pytest.mark.parametrize(
    ("odds", "times"),
    [
        (Odds(lose_request=1.0), 0),
        (Odds(lose_reply=1.0), 1),
        (Odds(lose_reply=1.0, double=1.0), 2),
        (Odds(lose_reply=1.0, double_late=1.0), 2),
    ],
    ids=["request lost", "reply lost", "doubled", "doubled late"],
)
def test_an_answer_that_never_comes_is_unknown_within_the_budget(odds: Odds, times: int) -> None:
    wire = Wire(odds)

    async def main() -> None:
        with pytest.raises(OutcomeUnknown):
            await wire.store.grant(ASK, 0.7)
        assert wire.world.now == 0.7

    wire.run(main())
    assert wire.carried_out() == times


def test_a_server_that_refuses_has_done_nothing() -> None:
    wire = Wire(Odds())
    wire.server.refuses = True

    async def main() -> None:
        with pytest.raises(StoreUnavailable) as refused:
            await wire.store.grant(ASK, 1.0)
        assert not isinstance(refused.value, OutcomeUnknown)

    wire.run(main())
    assert not wire.carried_out()


def test_a_doubled_request_is_never_called_refused() -> None:
    """The first copy may have been carried out before the server went away."""
    wire = Wire(Odds(double=1.0))
    wire.server.refuses = True

    async def main() -> None:
        with pytest.raises(OutcomeUnknown):
            await wire.store.grant(ASK, 1.0)

    wire.run(main())


def test_a_server_that_hangs_swallows_requests() -> None:
    wire = Wire(Odds())
    wire.server.hangs = True

    async def main() -> None:
        with pytest.raises(OutcomeUnknown):
            await wire.store.grant(ASK, 1.0)

    wire.run(main())
    assert not wire.carried_out()


def test_a_release_is_carried_out_after_the_ask_that_was_cancelled() -> None:
    for seed in range(50):
        wire = Wire(Odds(delay_request=0.7, longest=2.0))
        wire.world.chance.seed(seed)

        async def main(wire: Wire = wire) -> None:
            await wire.store.release("x", "token", 30.0)

        asking = wire.process.start(wire.store.grant(ASK, 30.0), "ask")
        wire.world.call_later(0.0001, asking.cancel)
        wire.world.run()
        wire.run(main())
        assert [what for _, what, _, _ in wire.network.calls] == ["grant", "release"]


def test_fences_rise_over_the_loss_of_the_memory() -> None:
    wire = Wire(Odds())

    async def fence(token: str) -> int:
        answer = await wire.store.grant(ASK._replace(token=token), 1.0)
        assert isinstance(answer, Grant)
        return answer.fence

    first = wire.run(fence("first"))
    wire.server.restart()
    assert wire.run(fence("second")) > first


def test_a_hint_can_be_lost_and_then_waiting_ends_by_itself() -> None:
    wire = Wire(Odds(lose_hint=1.0))

    async def main() -> None:
        await wire.store.grant(ASK, 1.0)
        waiting = ASK._replace(token="waiter", queue=True)
        busy = await wire.store.grant(waiting, 1.0)
        assert isinstance(busy, Busy)
        wire.world.call_later(0.1, lambda: wire.server.memory.release("sim", "x", "token"))
        await wire.store.wait(waiting, busy, 5.0)
        assert 0.5 <= wire.world.now < 0.6

    wire.run(main())
