"""A cluster of three masters without replicas, and slots that move between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from servers.node import HOST, Kind
from servers.ports import Port
from servers.process import until
from servers.redis import RedisServer

SLOTS = 16384
NODE_TIMEOUT_MS = 1000
"""A node takes a silent one for dead after so long."""


class RedisCluster:
    """Three masters, each with a third of the slots.

    with RedisCluster() as cluster:
        slot = cluster.slot("{invoice}:42")
        with cluster.moving(slot, to=cluster.others(slot)[0]):
            ...  # ASK for keys that are not there any more
        ...  # MOVED
    """

    def __init__(self, kind: Kind = "redis") -> None:
        self.kind = kind
        self._stack = ExitStack()
        self._buses: dict[int, int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.nodes = [self._node(stack) for _ in range(3)]
            self._share_slots()
            for other in self.nodes[1:]:
                self.nodes[0].command("CLUSTER", "MEET", *other.address, self._buses[other.port])
            self.await_ok()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """How a client finds all nodes."""
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def slot(self, key: str) -> int:
        """The slot of a key."""
        return int(self.nodes[0].command("CLUSTER", "KEYSLOT", key))

    def owner(self, slot: int) -> RedisServer:
        """The node that serves a slot."""
        for first, last, (_, port, *_), *_ in self.nodes[0].command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise AssertionError(f"nobody serves slot {slot}")

    def others(self, slot: int) -> list[RedisServer]:
        """The nodes that do not serve a slot."""
        owner = self.owner(slot)
        return [node for node in self.nodes if node is not owner]

    def move(self, slot: int, to: RedisServer) -> None:
        """Give a slot with its keys to another node."""
        with self.moving(slot, to):
            self.move_keys(slot, to)

    @contextmanager
    def moving(self, slot: int, to: RedisServer) -> Iterator[None]:
        """A slot on its way: its owner answers ASK for keys it does not have. At the end what is left moves too."""
        owner = self.owner(slot)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(owner))
        owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(to))
        try:
            yield
        finally:
            self.move_keys(slot, to)
            for node in [to, owner, *self.nodes]:  # the new owner first, so that no moment is without one
                node.command("CLUSTER", "SETSLOT", slot, "NODE", self._id(to))

    def move_keys(self, slot: int, to: RedisServer, count: int = 1_000) -> None:
        """Move so many keys of a slot that is being moved, while it stays on its way."""
        owner = self.owner(slot)
        if keys := owner.command("CLUSTER", "GETKEYSINSLOT", slot, count):
            owner.command("MIGRATE", *to.address, "", 0, 5_000, "KEYS", *keys)

    def await_ok(self) -> None:
        """Wait until every node would serve."""
        until(lambda: all(self._is_ok(node) for node in self.nodes), "the cluster is complete in the eyes of all")

    def reset(self) -> None:
        """For the next test: all run, all is served, nothing is kept."""
        for node in self.nodes:
            node.cont()
            if not node.runs:
                node.start()
        self.await_ok()
        for node in self.nodes:
            node.reset()

    def _node(self, stack: ExitStack) -> RedisServer:
        bus = Port()
        stack.callback(bus.give_back)
        config = ["cluster-enabled yes", f"cluster-port {bus.number}", f"cluster-node-timeout {NODE_TIMEOUT_MS}"]
        node = stack.enter_context(RedisServer(self.kind, config=config))
        self._buses[node.port] = bus.number
        return node

    def _share_slots(self) -> None:
        bounds = [SLOTS * share // len(self.nodes) for share in range(len(self.nodes) + 1)]
        for node, first, end in zip(self.nodes, bounds[:-1], bounds[1:], strict=True):
            node.command("CLUSTER", "ADDSLOTSRANGE", first, end - 1)

    def _id(self, node: RedisServer) -> str:
        return str(node.command("CLUSTER", "MYID"))

    def _is_ok(self, node: RedisServer) -> bool:
        lines = dict(line.split(":") for line in str(node.command("CLUSTER", "INFO")).split())
        return lines["cluster_state"] == "ok" and lines["cluster_known_nodes"] == str(len(self.nodes))
