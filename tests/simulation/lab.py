"""A small world for one case: a server, processes with clients, and faults that are switched on by hand."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from dibs.core.client import Client
from dibs.stores.store import Ask
from dibs.testing.faults import FarStore, Network, Odds, SimulatedServer
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler, Task

NAME = "invoice"

FAULTLESS = Odds()


class Lab:
    """One server, one network, any number of processes; one way takes at most 1 ms."""

    def __init__(self, seed: int = 1, odds: Odds = FAULTLESS) -> None:
        self.world = Scheduler(seed)
        self.server = SimulatedServer(self.world)
        self.network = Network(self.world, self.server, odds)
        self.processes: dict[str, SimulatedRuntime] = {}

    def client(self, name: str = "p", **clock: float) -> Client:
        process = SimulatedRuntime(self.world, name, pid=1000 + len(self.processes), **clock)
        self.processes[name] = process
        return Client(FarStore(self.network, process), process)

    def start(self, main: Coroutine[Any, Any, Any], process: str = "p", name: str = "main") -> Task:
        return self.processes[process].start(main, name)

    def run(self, main: Coroutine[Any, Any, Any], process: str = "p") -> Any:
        """Run *main* to its end; return what it returns."""
        task = self.start(main, process)
        self.world.run()
        return task.result

    @contextmanager
    def failing(self, **odds: float) -> Iterator[None]:
        """Let every message have these faults, for as long as the block lasts."""
        before, self.network.odds = self.network.odds, self.network.odds._replace(**odds)
        yield
        self.network.odds = before

    def later(self, seconds: float, **facts: bool) -> None:
        """Set *facts* of the server after *seconds*: refuses, hangs."""

        def change() -> None:
            for fact, value in facts.items():
                setattr(self.server, fact, value)

        self.world.call_later(seconds, change)

    def holder(self, name: str = NAME) -> int:
        """The fence of who has *name* at the server, 0 if nobody has."""
        holder = self.server.memory.show("sim", name).holder
        return holder.fence if holder else 0

    def waiting(self, name: str = NAME) -> int:
        return len(self.server.memory.show("sim", name).waiting)

    def sent(self, what: str) -> int:
        """How many requests of this kind the server carried out."""
        return sum(call[1] == what for call in self.network.calls)

    def tokens(self) -> set[str]:
        """The tokens that were ever asked with."""
        return {call[3].token for call in self.network.calls if isinstance(call[3], Ask)}
