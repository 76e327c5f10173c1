"""Nodes of a Redlock in memory, behind the bad network of `dibs.testing.faults`: what the scripts do, without Redis."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any, cast
from weakref import WeakKeyDictionary

from dibs.errors import OutcomeUnknown, StoreUnavailable
from dibs.holder import LockState
from dibs.stores.memory.port.entry import lengthened
from dibs.stores.redis.port.command import Script
from dibs.stores.redlock import member_scripts as members
from dibs.stores.redlock import scripts, view, vote
from dibs.stores.redlock.options import RedlockOptions
from dibs.stores.redlock.port.nodes import OVERDUE, NodeAnswer, NodeCall, PlainCommand
from dibs.stores.redlock.store import RedlockStore
from dibs.stores.store import Ask
from dibs.testing.faults import Network, SimulatedServer
from dibs.testing.simulation.runtime import SimulatedRuntime

Reply = Any


class Held:
    """The value of one lock at one node."""

    def __init__(self, token: bytes, attempt: int, fence: int, since: int, facts: bytes, expires_at: float) -> None:
        self.token, self.attempt, self.fence, self.since, self.facts = token, attempt, fence, since, facts
        self.expires_at = expires_at

    @property
    def value(self) -> bytes:
        return b"dibs:%b!%d:%d:%d:%b" % (self.token, self.attempt, self.fence, self.since, self.facts)


class FakeNode:
    """One node: its memory and its clocks."""

    def __init__(self, now: Callable[[], float], wall_us: Callable[[], int]) -> None:
        self._now, self._wall_us = now, wall_us
        self.locks: dict[bytes, Held] = {}
        self.fences: dict[bytes, int] = {}
        self.lines: dict[bytes, dict[bytes, tuple[int, bytes, bytes]]] = {}  # token: since, channel, facts
        self.evicted: dict[bytes, tuple[list[bytes], bytes]] = {}  # all tokens, and the last value as Redis has it
        self.facts: dict[str, Any] = {"id": "", "run": "", "set": "", "size": 0, "floor": 0, "highest": 0, "longest": 0}
        self.facts |= {"back": "", "away": ""}
        self.call: Callable[[bytes, bytes], bool] = lambda channel, message: False
        self._steps: dict[Script, Callable[..., Reply]] = {
            scripts.GRANT: self.grant, scripts.CONFIRM: self.confirm, scripts.RENEW: self.renew,
            scripts.RELEASE: self.release, scripts.WITHDRAW: self.withdraw, scripts.EVICT: self.evict,
            scripts.ATTACH: self.attach, scripts.SHOW: self.show, members.STATE: self.state, members.JOIN: self.join,
            members.RESEED: self.reseed, scripts.LIST: self.list,
        }  # fmt: skip

    def carry_out(self, call: NodeCall | PlainCommand) -> Reply:
        assert isinstance(call, NodeCall)
        arguments = [part.encode() if isinstance(part, str) else part for part in call.arguments]
        return self._steps[call.script](list(call.keys), *arguments)

    # --- the scripts ---------------------------------------------------------------------------------------

    def grant(self, keys: list[bytes], token: bytes, ttl: int, proposal: int, *rest: Any) -> Reply:
        channel, facts, of, attempt = rest
        lock, now_us = keys[0], self._wall_us()
        if self.facts["set"].encode() != of:
            return [b"stranger", self.facts["set"].encode()]
        held = self.held(lock)
        if held is not None and held.token == token:
            held.attempt = max(held.attempt, attempt)
            held.expires_at = self._now() + ttl / 1000
            return b"%d %d" % (held.fence, now_us)
        line = self.lines.setdefault(lock, {})
        if held is not None:
            if channel != b"-":
                since = line[token][0] if token in line else now_us
                line[token] = (since, channel, facts)
            return [b"held", self.left(held), b"%d" % now_us, held.value]
        fence = max(self.fences.get(lock, 0) + 1, self.facts["floor"] + 1, proposal)
        if channel != b"-":
            line.pop(token, None)
        self.fences[lock] = fence
        self.locks[lock] = Held(token, attempt, fence, now_us, facts, self._now() + ttl / 1000)
        self.facts["highest"] = max(self.facts["highest"], fence)
        self.facts["longest"] = max(self.facts["longest"], ttl)
        return b"%d %d" % (fence, now_us)

    def confirm(self, keys: list[bytes], token: bytes, fence: int) -> Reply:
        held = self.held(keys[0])
        if held is None or held.token != token:
            return [b"gone"]
        self.rise(keys[0], held, fence)
        return b"%d %d" % (held.fence, self._wall_us())

    def rise(self, lock: bytes, held: Held, fence: int) -> None:
        held.fence = max(held.fence, fence)
        self.fences[lock] = max(self.fences[lock], held.fence)
        self.facts["highest"] = max(self.facts["highest"], held.fence)

    def renew(self, keys: list[bytes], *arguments: Any) -> Reply:
        said = []
        for place in range(len(arguments) // 4):
            lock, evicted = keys[3 * place + 1], keys[3 * place + 3]
            ttl, most, token, fence = arguments[4 * place : 4 * place + 4]
            held = self.held(lock)
            if held is not None and held.token == token and held.fence <= fence:
                held.attempt = scripts.KEPT
                self.rise(lock, held, fence)
                held.expires_at = lengthened(held.expires_at, self._now(), ttl / 1000, most / 1000)
                self.facts["longest"] = max(self.facts["longest"], ttl)
                said.append(b"held")
            else:
                said.append(b"evicted" if token in self.evicted.get(evicted, ([],))[0] else b"taken")
        return said

    def release(self, keys: list[bytes], token: bytes) -> Reply:
        lock, evicted = keys[0], keys[3]
        held, line = self.held(lock), self.lines.setdefault(lock, {})
        ours = held is not None and held.token == token
        if ours:
            del self.locks[lock]
        waited = line.pop(token, None) is not None
        if ours or (waited and held is None):
            self.hint(lock)
        if ours:
            return b"held"
        return b"evicted" if token in self.evicted.get(evicted, ([],))[0] else b"taken"

    def withdraw(self, keys: list[bytes], token: bytes, attempt: int) -> Reply:
        held = self.held(keys[0])
        if held is not None and held.token == token and held.attempt <= attempt:
            del self.locks[keys[0]]
        return 1

    def evict(self, keys: list[bytes], fence: int, who: bytes) -> Reply:
        held = self.held(keys[0])
        if held is None or held.fence != fence:
            return 0
        before = self.evicted.get(keys[3], ([],))[0]
        self.evicted[keys[3]] = ([*before, held.token], b"%b:%d:%d:%b" % (held.token, fence, self._wall_us(), who))
        del self.locks[keys[0]]
        self.hint(keys[0])
        return 1

    def attach(self, keys: list[bytes], token: bytes, facts: bytes) -> Reply:
        held = self.held(keys[0])
        if held is not None and held.token == token:
            held.facts = facts
        return 1

    def show(self, keys: list[bytes]) -> Reply:
        lock, now_us, held = keys[0], self._wall_us(), self.held(keys[0])
        line, tickets = [], []
        for token, (since, channel, facts) in self.lines.get(lock, {}).items():
            line += [token, b"%d" % since]
            tickets += [token, b"%d %b %b" % (now_us + 1, channel, facts)]
        return [
            b"%d" % now_us, held.value if held else None, self.left(held) if held else -2,
            b"%d" % self.fences[lock] if lock in self.fences else None, line, tickets,
            self.evicted.get(keys[4], ([], None))[1], self.facts["set"].encode(),
        ]  # fmt: skip

    def state(self, keys: list[bytes], how: bytes, name: bytes) -> Reply:
        facts = self.facts
        if how != b"look":
            facts["id"] = facts["id"] or name.decode()
        if how == b"note" and not facts["set"] and not facts["back"]:
            facts["back"] = str(self._wall_us())
        names = ("id", "run", "set", "size", "floor", "highest", "longest", "back", "away")
        return [b"%d" % self._wall_us(), *(str(facts[name] or "").encode() for name in names)]

    def join(
        self, keys: list[bytes], of: bytes, size: int, floor: int, longest: int, name: bytes, back: bytes
    ) -> Reply:
        facts = self.facts
        if facts["set"] == of.decode():
            return 1
        if facts["set"] or facts["id"].encode() != name or facts["back"].encode() != back:
            return 0
        facts.update(set=of.decode(), size=size, floor=max(facts["floor"], floor), back="", away="")
        facts.update(highest=max(facts["highest"], facts["floor"]), longest=max(facts["longest"], longest))
        return 1

    def reseed(self, keys: list[bytes], of: bytes, size: int, floor: int) -> Reply:
        self.facts.update(set=of.decode(), size=size, floor=max(self.facts["floor"], floor), back="", away="")
        return 1

    def list(self, keys: list[bytes], cursor: bytes, pattern: bytes) -> Reply:
        held = {lock: self.held(lock) for lock in list(self.locks)}
        found: list[list[Any]] = [
            [lock, each.value, self.left(each)] for lock, each in held.items() if each is not None
        ]
        start = re.sub(rb"\\(.)", rb"\1", pattern[:-2])
        return [b"0", b"%d" % self._wall_us(), [entry for entry in found if bytes(entry[0]).startswith(start)]]

    # --- inside --------------------------------------------------------------------------------------------

    def held(self, lock: bytes) -> Held | None:
        held = self.locks.get(lock)
        if held is not None and self._now() >= held.expires_at:
            del self.locks[lock]
            return None
        return held

    def left(self, held: Held) -> int:
        return int((held.expires_at - self._now()) * 1000) + 1

    def hint(self, lock: bytes) -> None:
        for place, (token, (_, channel, _)) in enumerate(list(self.lines.get(lock, {}).items())[:2]):
            self.call(channel, (b"soon " if place else b"now ") + token)


class Crew:
    """The nodes of one simulation."""

    def __init__(self, network: Network, count: int, rate: Callable[[], float] = lambda: 1.0) -> None:
        self.network, self.quorum = network, vote.quorum_of(count)
        self.servers = [SimulatedServer(network.world, rate=rate(), kind=FakeNode) for _ in range(count)]  # type: ignore[arg-type]
        self.subscribers: dict[bytes, SimulatedNodes] = {}
        for number in range(count):
            self.node(number).facts["id"] = f"node {number}"
            self.node(number).call = self.publish

    def node(self, number: int) -> FakeNode:
        return cast("FakeNode", self.servers[number].memory)

    @property
    def nodes(self) -> list[FakeNode]:
        return [self.node(number) for number in range(len(self.servers))]

    def forget(self, number: int) -> None:
        """The node forgets everything, who it is too, while all stay connected (FLUSHALL)."""
        self.servers[number].restart()
        self.node(number).call = self.publish
        self.network.world.log(f"node {number} forgot everything")

    def publish(self, channel: bytes, message: bytes) -> bool:
        subscribers = self.subscribers.get(channel)
        if subscribers is not None and not self.network.hits(self.network.odds.lose_hint, "hint lost"):
            self.network.world.call_later(self.network.trip(0.0, ""), lambda: subscribers.called(message))
        return subscribers is not None


class SimulatedRound:
    """One round of one task."""

    def __init__(self, nodes: SimulatedNodes, runtime: SimulatedRuntime) -> None:
        self._nodes, self._runtime = nodes, runtime
        self._answers = deque[NodeAnswer]()
        self._event = runtime.event()
        self.ended = False

    def send(
        self, node: int, call: NodeCall | PlainCommand, *, undo: NodeCall | None = None, behind: bool = False
    ) -> None:
        self._nodes.deliver(node, call, self, undo)

    def send_all(self, call: NodeCall, *, undo: NodeCall | None = None, behind: bool = False) -> None:
        for node in range(len(self._nodes.names)):
            self.send(node, call, undo=undo, behind=behind)

    def hear(self, answer: NodeAnswer) -> None:
        if not self.ended:
            self._answers.append(answer)
            self._event.set()

    async def next(self, until: float) -> NodeAnswer | None:
        while not self._answers:
            left = until - self._runtime.now()
            if left <= 0:
                return None
            self._event.clear()
            await self._event.wait(left)
        return self._answers.popleft()

    def end(self, *, keep: str = "") -> None:
        self.ended = True


class SimulatedNodes:
    """All nodes, as one simulated process sees them: a connection to each, on which what is sent stays in order."""

    def __init__(self, crew: Crew, runtime: SimulatedRuntime) -> None:
        self._crew, self._runtime, self._network = crew, runtime, crew.network
        self.names = [f"node{number}" for number in range(len(crew.servers))]
        self.channel = b"wake:%b" % runtime.token().encode()
        crew.subscribers[self.channel] = self
        self._waiting: dict[str, tuple[Any, list[str]]] = {}
        self._last_arrival = [0.0] * len(self.names)
        self._given_up = [0] * len(self.names)
        """How many connections to each node were given up: what is still under way on one of them comes late."""

    def round(self, token: str = "") -> SimulatedRound:
        return SimulatedRound(self, self._runtime)

    async def expect(self, token: str, within: float) -> bytes:
        self._waiting.setdefault(token, (self._runtime.event(), []))
        return self.channel

    async def wait(self, token: str, within: float) -> str:
        if token not in self._waiting:
            return ""
        event, words = self._waiting[token]
        if not words:
            event.clear()
            await event.wait(within)
        word = words[0] if words else ""
        words.clear()
        return word

    def forget(self, token: str) -> None:
        self._waiting.pop(token, None)

    async def close(self) -> None:
        self._crew.subscribers.pop(self.channel, None)

    def forked(self) -> None:
        """Simulated processes do not fork."""

    def called(self, message: bytes) -> None:
        word, _, token = message.decode().partition(" ")
        if self._runtime.runs and token in self._waiting:
            event, words = self._waiting[token]
            words.append(word)
            event.set()

    def deliver(
        self, node: int, call: NodeCall | PlainCommand, asking: SimulatedRound | None, undo: NodeCall | None
    ) -> None:
        """Send one request on its way, with all that can happen to it."""
        network, world, odds = self._network, self._network.world, self._network.odds
        heard: list[bool] = []

        def answered(reply: Reply) -> None:
            heard.append(True)
            if asking is not None:
                asking.hear(NodeAnswer(node, call, reply))

        if undo is not None:  # a connection that owes an answer for too long is given up, and the vote given back
            world.call_later(OVERDUE, lambda: self._undo(node, undo) if not heard else None)
        if network.hits(odds.lose_request, "request lost"):
            self._last_arrival[node] = 0.0
            self._given_up[node] += 1
            return
        connection = self._given_up[node]
        arrival = world.now + network.trip(odds.delay_request, "request delayed")
        self._last_arrival[node] = arrival = max(arrival, self._last_arrival[node])
        world.call_at(arrival, lambda: self._arrive(node, call, answered, late=connection != self._given_up[node]))
        if network.hits(odds.double, "request doubled"):  # on the same connection: nothing comes in between
            world.call_at(arrival, lambda: self._arrive(node, call, None))
        if network.hits(odds.double_late, "request carried out again, much later"):
            later = arrival + world.chance.random() * odds.longest
            world.call_at(later, lambda: self._arrive(node, call, None, late=True))

    def _undo(self, node: int, undo: NodeCall) -> None:
        if not self._runtime.dead:
            self.deliver(node, undo, None, None)

    def _arrive(
        self, node: int, call: NodeCall | PlainCommand, answered: Callable[[Reply], None] | None, late: bool = False
    ) -> None:
        network, server = self._network, self._crew.servers[node]
        if server.hangs:
            return
        if server.refuses:
            if answered is not None:
                error = StoreUnavailable(self.names[node], "connection refused")
                network.world.call_later(network.trip(0.0, ""), lambda: answered(error))
            return
        reply = self._crew.node(node).carry_out(call)
        self._note(call, late)
        network.world.log(lambda: f"at node {node}: {shown(call)} -> {str(reply)[:60]}", self._runtime.name)
        if answered is not None and not network.hits(network.odds.lose_reply, "reply lost"):
            delay = network.trip(network.odds.delay_reply, "reply delayed")
            network.world.call_later(delay, lambda: answered(reply))
        elif answered is not None and network.world.chance.random() < 0.5:  # the connection broke, and it is noticed
            error = OutcomeUnknown(self.names[node], "the connection broke")
            network.world.call_later(network.trip(0.0, ""), lambda: answered(error))

    def _note(self, call: NodeCall | PlainCommand, late: bool) -> None:
        """For the search for what was never given back."""
        assert isinstance(call, NodeCall)
        if call.script is scripts.GRANT:
            token, name = str(call.arguments[0]), name_of(call.keys[0])
            if late:
                self._network.late.add(token)
            ask = Ask(name, token, float(call.arguments[1]) / 1000, "", queue=False)
            self._network.calls.append((self._network.world.now, "grant", self._runtime.name, ask))
        elif call.script is scripts.RELEASE:
            facts = (name_of(call.keys[0]), str(call.arguments[0]))
            self._network.calls.append((self._network.world.now, "release", self._runtime.name, facts))


def shown(call: NodeCall | PlainCommand) -> str:
    assert isinstance(call, NodeCall)
    known = {**vars(scripts), **vars(members)}
    name = next(name for name, script in known.items() if script is call.script)
    return f"{name} {' '.join(str(part)[:18] for part in call.arguments)}"


def name_of(key: bytes) -> str:
    return key.decode().rpartition(":")[2].rstrip("}")


def key_of(name: str) -> bytes:
    return f"dibs:{{sim:{name}}}".encode()


class Everywhere:
    """The nodes as if they were one server, for those who look at what is left when all is over."""

    crew: Crew

    def __init__(self, now: object, wall_us: object) -> None:
        """As the server of a simulation is made."""

    def show(self, space: str, name: str) -> LockState:
        nodes = self.crew.nodes
        key = key_of(name)
        replies = [node.show([key, b"", b"", b"", b""]) for node in nodes]
        return view.state_of(name, key, replies, 0, self.crew.quorum, ())

    def release(self, space: str, name: str, token: str) -> object:
        """None if so many nodes have it that nobody else could get a quorum."""
        held = [node.held(key_of(name)) for node in self.crew.nodes]
        theirs = sum(each is not None and each.token == token.encode() for each in held)
        return None if theirs > len(held) - self.crew.quorum else "not held"


class Stores:
    """Makes the stores of the processes of each simulation."""

    def __init__(
        self, count: int, kind: type[RedlockStore] = RedlockStore, options: RedlockOptions | None = None
    ) -> None:
        self._count, self._kind, self._options = count, kind, options or RedlockOptions()
        self.crews: WeakKeyDictionary[Network, Crew] = WeakKeyDictionary()

    def __call__(
        self, network: Network, runtime: SimulatedRuntime, near: object = None, namespace: str = "sim"
    ) -> RedlockStore:
        crew = self.crews.get(network)
        if crew is None:
            chance = network.world.chance.random
            crew = self.crews[network] = Crew(network, self._count, lambda: 1 + 0.0025 * (2 * chance() - 1))
            if isinstance(network.server.memory, Everywhere):
                network.server.memory.crew = crew
        return self._kind(SimulatedNodes(crew, runtime), namespace, runtime, self._options)
