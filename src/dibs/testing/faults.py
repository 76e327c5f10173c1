"""A bad network, and a server that fails, before a `MemoryStore`: every fault that a client of a lock server meets.

Messages are lost, late, and doubled; the server goes away, hangs, forgets. It keeps the rules of `dibs.stores.store`
as a careful driver would: what may have happened is `OutcomeUnknown`, a step ends *within* its budget, and what one
client sends arrives in order, but for the copies that are late (a connection that broke, a driver that sent again),
and for what is stuck: the kernel delivers that when the network lets it, long after its sender has given it up.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StoreUnavailable
from dibs.holder import Holder, LockState, Record
from dibs.runtime import run
from dibs.stores.doubt import Doubts
from dibs.stores.memory.port.server import MemoryServer
from dibs.stores.memory.store import MemoryStore
from dibs.stores.record_store import RecordStore
from dibs.stores.store import Ask, Busy, Claim, Grant
from dibs.testing.simulation.runtime import SimulatedEvent, SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler

T = TypeVar("T")

LISTEN = 0.5
"""Seconds after which a waiter asks again without a hint: what a lost hint costs here at most."""


class Odds(NamedTuple):
    """How often each fault hits one message, from 0 to 1, and how long things take."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    delay_request: float = 0.0
    delay_reply: float = 0.0
    double: float = 0.0
    double_late: float = 0.0
    stuck: float = 0.0
    lose_hint: float = 0.0
    trip: float = 0.001
    """Seconds for one way, at most, when nothing is wrong."""
    longest: float = 3.0
    """Seconds of the longest delay."""
    stuck_for: float = 30.0
    """Seconds after which the last request that is stuck arrives."""


class SimulatedServer:
    """The machine that the lock server runs on: its own clock, its memory, and whether it can be reached."""

    def __init__(
        self,
        world: Scheduler,
        *,
        rate: float = 1.0,
        kind: Callable[[Callable[[], float], Callable[[], int]], MemoryServer] = MemoryServer,
    ) -> None:
        self.world, self.rate, self._kind = world, rate, kind
        self.ahead = 0.0
        """Seconds by which its clocks were set forward."""
        self.refuses = self.hangs = False
        self.memory = kind(self.now, self.wall_us)
        self.restarts = 0

    def now(self) -> float:
        """Its boot clock, which leases are timed by."""
        return 5_000.0 + self.world.now * self.rate + self.ahead

    def wall_us(self) -> int:
        """Its wall clock, which fences are made from."""
        return int((1.7e9 + self.world.now * self.rate + self.ahead) * 1e6)

    def restart(self) -> None:
        """Start again with an empty memory."""
        self.restarts += 1
        self.memory = self._kind(self.now, self.wall_us)


class Network:
    """What stands between the clients and one server."""

    def __init__(self, world: Scheduler, server: SimulatedServer, odds: Odds) -> None:
        self.world, self.server, self.odds = world, server, odds
        self.calls: list[tuple[float, str, str, object]] = []
        """Every step that the server carried out: when, what, for which process, with what."""
        self.faults: Counter[str] = Counter()
        self.healed = False
        self.late: set[str] = set()
        """Tokens of which there were copies of one ask: they may have what nobody knows of, for a ttl."""

    def heal(self) -> None:
        """From now on nothing fails. What is on its way stays on its way."""
        self.healed, self.odds = True, Odds(trip=self.odds.trip)
        self.server.refuses = self.server.hangs = False

    def hits(self, odds: float, fault: str) -> bool:
        """Whether *fault* happens now."""
        happens = odds > 0 and self.world.chance.random() < odds
        if happens:
            self.fault(fault)
        return happens

    def fault(self, fault: str) -> None:
        """*fault* was injected."""
        self.faults[fault] += 1
        self.world.log(f"! {fault}")

    def trip(self, delay_odds: float, fault: str) -> float:
        """Seconds for one way."""
        chance = self.world.chance.random
        late = self.hits(delay_odds, fault)
        return self.odds.longest * chance() ** 3 if late else self.odds.trip * (0.2 + 0.8 * chance())


class _Answer:
    """What comes back for one request: a value, or the certainty that it was not carried out."""

    __slots__ = ("arrived", "refused", "value")

    def __init__(self, arrived: SimulatedEvent) -> None:
        self.arrived = arrived
        self.refused = False
        self.value: Any = None

    def set(self, value: Any) -> None:
        """The reply is here; of several the first counts."""
        if not self.arrived.is_set():
            self.value = value
            self.arrived.set()

    def refuse(self) -> None:
        """The server said that it will not do it."""
        if not self.arrived.is_set():
            self.refused = True
            self.arrived.set()


class FarStore(RecordStore):
    """The store of one client process, at the other end of a bad network."""

    guarantees = MemoryStore.guarantees

    def __init__(self, network: Network, runtime: SimulatedRuntime, near: type[MemoryStore] = MemoryStore) -> None:
        self._network, self._runtime, self._near_kind = network, runtime, near
        self._last_arrival = 0.0
        self._doubts = Doubts()

    async def grant(self, ask: Ask, within: float) -> Grant | Busy:
        """Send it."""
        return await self._ask(ask, lambda near: near.grant(ask, within), within)

    async def renew(self, claims: Sequence[Claim], within: float) -> list[LossReason | None]:
        """Send it."""
        return await self._send("renew", tuple(claims), lambda near: near.renew(claims, within), within)

    async def release(self, name: str, token: str, within: float) -> LossReason | None:
        """Send it."""
        doubtful = token in self._doubts
        reason = await self._send(
            "release",
            (name, token),
            lambda near: near.give_back(name, token) if doubtful else near.release(name, token, within),
            within,
        )
        self._doubts.settled(token)
        return reason

    async def evict(self, name: str, fence: int, reason: str, within: float) -> bool:
        """Send it."""
        return await self._send("evict", (name, fence), lambda near: near.evict(name, fence, reason, within), within)

    async def holders(self, prefix: str, within: float) -> list[Holder]:
        """Send it."""
        return await self._send("holders", prefix, lambda near: near.holders(prefix, within), within)

    async def show(self, name: str, within: float) -> LockState:
        """Send it."""
        return await self._send("show", name, lambda near: near.show(name, within), within)

    async def attach(self, claim: Claim, note: str, within: float) -> None:
        """Send it."""
        await self._send("attach", claim, lambda near: near.attach(claim, note, within), within)

    async def grant_unless_recorded(self, ask: Ask, after: int, within: float) -> Grant | Busy | Record:
        """Send it."""
        return await self._ask(ask, lambda near: near.grant_unless_recorded(ask, after, within), within)

    async def remember(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Send it."""
        return await self._send("remember", claim, lambda near: near.remember(claim, data, keep, within), within)

    async def finish(self, claim: Claim, data: bytes, keep: float, within: float) -> LossReason | None:
        """Send it."""
        answer = await self._send("finish", claim, lambda near: near.finish(claim, data, keep, within), within)
        if claim.token in self._doubts:
            with contextlib.suppress(StoreUnavailable):  # it is finished all the same
                await self.release(claim.name, claim.token, within)
        return answer

    async def record(self, name: str, within: float) -> Record | None:
        """Send it."""
        return await self._send("record", name, lambda near: near.record(name, within), within)

    async def time(self, name: str, within: float) -> float:
        """Send it."""
        return await self._send("time", name, lambda near: near.time(name, within), within)

    async def records(self, prefix: str, most: int, within: float) -> list[Record]:
        """Send it."""
        return await self._send("records", prefix, lambda near: near.records(prefix, most, within), within)

    async def forget(self, name: str, fence: int, within: float) -> bool:
        """Send it."""
        return await self._send("forget", (name, fence), lambda near: near.forget(name, fence, within), within)

    async def wait(self, ask: Ask, busy: Busy, within: float) -> None:
        """Let the server hint when it is our turn, and do not rely on it."""
        network, server, hinted = self._network, self._network.server, self._runtime.event()
        if server.refuses:
            raise StoreUnavailable("far", "connection refused")

        def hint() -> None:
            if not network.hits(network.odds.lose_hint, "hint lost"):
                network.world.call_later(network.trip(0.0, ""), hinted.set)

        def listen() -> None:
            if not server.hangs and server.memory.on_hint("sim", ask.name, ask.token, hint):
                hint()

        network.world.call_later(network.trip(0.0, ""), listen)
        await hinted.wait(min(within, LISTEN))

    def __repr__(self) -> str:
        return f"far: from {self._runtime.name}"

    async def _ask(self, ask: Ask, step: Callable[[MemoryStore], Coroutine[Any, Any, T]], within: float) -> T:
        return await self._doubts.of(ask.token, self._send("grant", ask, step, within))

    async def _send(
        self, what: str, facts: object, step: Callable[[MemoryStore], Coroutine[Any, Any, T]], within: float
    ) -> T:
        network, odds = self._network, self._network.odds
        answer = _Answer(self._runtime.event())
        if not network.hits(odds.lose_request, "request lost"):
            doubled = network.hits(odds.double, "request doubled")
            late = network.hits(odds.double_late, "request carried out again, much later")
            if network.hits(odds.stuck, "request stuck"):  # on a connection of its own: what comes later overtakes it
                arrival = network.world.now + network.world.chance.random() * odds.stuck_for
            else:
                arrival = network.world.now + network.trip(odds.delay_request, "request delayed")
                self._last_arrival = arrival = max(arrival, self._last_arrival)
            sole = not doubled and not late
            self._deliver(arrival, what, facts, step, answer, sole)
            if doubled:
                if isinstance(facts, Ask):
                    network.late.add(facts.token)  # the copy may come when the first was answered and given back
                self._deliver(arrival + network.odds.trip, what, facts, step, answer, False)
            if late:
                much_later = arrival + network.world.chance.random() * odds.longest
                self._deliver(much_later, what, facts, step, None, False)
        try:
            await answer.arrived.wait(within)
        finally:
            answer.arrived.set()  # what comes later comes too late
        if answer.refused:
            raise StoreUnavailable("far", "connection refused")
        if answer.value is None:
            self._last_arrival = 0.0  # a driver gives this connection up: the next request may overtake the lost one
            raise OutcomeUnknown("far", f"no answer to {what} within {within:.3g} s")
        [value] = answer.value
        if isinstance(value, Misuse):
            raise value
        return value  # type: ignore[no-any-return]

    def _deliver(
        self,
        arrival: float,
        what: str,
        facts: object,
        step: Callable[[MemoryStore], Coroutine[Any, Any, T]],
        answer: _Answer | None,
        sole: bool,
    ) -> None:
        """Have it carried out at *arrival*. Only a *sole* copy can be refused: another may have been carried out."""
        network = self._network

        def arrive() -> None:
            if network.server.hangs:
                return
            if network.server.refuses:
                if sole and answer is not None:
                    network.world.call_later(network.trip(0.0, ""), answer.refuse)
                return
            value: T | Misuse
            try:
                value = run(step(self._near_kind(network.server.memory, "sim", self._runtime)))
            except Misuse as error:
                value = error
            if answer is None and isinstance(facts, Ask):
                network.late.add(facts.token)
            network.calls.append((network.world.now, what, self._runtime.name, facts))
            network.world.log(lambda: f"at the server: {what} {_short(facts)} -> {_short(value)}", self._runtime.name)
            if answer is not None and not network.hits(network.odds.lose_reply, "reply lost"):
                network.world.call_later(
                    network.trip(network.odds.delay_reply, "reply delayed"), lambda: answer.set((value,))
                )

        network.world.call_at(arrival, arrive)


def _short(facts: object) -> str:
    """*facts* for a trace, with tokens cut short."""
    if isinstance(facts, Ask | Claim):
        return f"{facts.name} {facts.token[:6]} ttl={facts.ttl:.3g}"
    if isinstance(facts, Busy):
        return f"busy({facts.retry_in:.3f})"
    if isinstance(facts, Grant):
        return f"grant({facts.fence})"
    if isinstance(facts, tuple | list):
        return " ".join(_short(fact) for fact in facts)
    return str(facts)[:20]
