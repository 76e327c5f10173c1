"""A master, its replica, and three sentinels that watch them and know each other from the start."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self

from servers.node import HOST, Kind, Node
from servers.process import until
from servers.redis import RedisServer

QUORUM = 2
DOWN_AFTER_MS = 500
"""A sentinel takes a silent master for dead after so long."""

PERIODS: list[str | int] = ["info-period", 1000, "ask-period", 100]
"""How often sentinels look, in ms: more often than theirs, with so few of them. The others stay: with a short
ping-period they reject a replica for old news, and after four publish-periods a sentinel demotes a new master that it
has not heard of."""


class SentinelTrio:
    """Three sentinels, which fail over by themselves when the master is dead or silent, and on demand at once.

    with SentinelTrio() as trio:
        old = trio.master
        old.kill9()
        trio.await_failover(old)
        assert trio.master is not old
    """

    name = "dibs"

    def __init__(self, kind: Kind = "redis") -> None:
        self.kind = kind
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.servers = [stack.enter_context(RedisServer(self.kind)) for _ in range(2)]
            first, second = self.servers
            second.replicate(first)
            self.sentinels = [Node(self.kind, [], arguments=["--sentinel"]) for _ in range(3)]
            self._introduce(first, second)
            for sentinel in self.sentinels:
                stack.push(sentinel)
                sentinel.begin()
            for sentinel in self.sentinels:
                sentinel.wait().command("SENTINEL", "DEBUG", *PERIODS)
            self.await_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """How a client finds the master, whichever it is."""
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}/0"

    @property
    def master(self) -> RedisServer:
        """The server that most sentinels say is the master."""
        ports = [self._ask(each, "GET-MASTER-ADDR-BY-NAME")[1] for each in self.sentinels if each.runs]
        winner = max(ports, key=ports.count)
        return next(server for server in self.servers if server.port == int(winner))

    @property
    def replica(self) -> RedisServer:
        """The other server."""
        master = self.master
        return next(server for server in self.servers if server is not master)

    def failover(self) -> RedisServer:
        """Promote the replica, with no need: return it when it is master for all, and the old one its replica."""
        old = self.master
        self._ask(self.sentinels[0], "FAILOVER")
        new = self.await_failover(old)
        old.replicate(new)  # a sentinel does that too, after eight seconds
        self.await_ready()
        return new

    def await_failover(self, old: RedisServer) -> RedisServer:
        """Wait until the other server is master in the eyes of all sentinels, and return it."""
        until(lambda: self.master is not old, "the sentinels fail over")
        new = self.master
        until(lambda: all(self._says(each, new) for each in self.sentinels if each.runs), "all sentinels know")
        until(lambda: new.info("replication")["role"] == "master", "the replica is promoted")
        return new

    def await_ready(self) -> None:
        """Wait until all sentinels see each other, a master and its replica, and nothing is under way."""
        until(lambda: all(self._sees_all(each) for each in self.sentinels), "the sentinels see all servers")

    def _introduce(self, master: Node, replica: Node) -> None:
        ids = [f"{number:040x}" for number in range(1, len(self.sentinels) + 1)]
        for sentinel, own in zip(self.sentinels, ids, strict=True):
            sentinel.write_config([
                f"sentinel myid {own}",
                f"sentinel monitor {self.name} {HOST} {master.port} {QUORUM}",
                f"sentinel down-after-milliseconds {self.name} {DOWN_AFTER_MS}",
                f"sentinel failover-timeout {self.name} 5000",
                f"sentinel known-replica {self.name} {HOST} {replica.port}",
                *(
                    f"sentinel known-sentinel {self.name} {HOST} {other.port} {its}"
                    for other, its in zip(self.sentinels, ids, strict=True)
                    if other is not sentinel
                ),
            ])  # fmt: skip

    def _ask(self, sentinel: Node, what: str) -> Any:
        return sentinel.command("SENTINEL", what, self.name)

    def _says(self, sentinel: Node, master: Node) -> bool:
        return bool(self._ask(sentinel, "GET-MASTER-ADDR-BY-NAME") == [HOST, str(master.port)])

    def _sees_all(self, sentinel: Node) -> bool:
        replicas = [pairs(each) for each in self._ask(sentinel, "REPLICAS")]
        ready = [each for each in replicas if each["master-link-status"] == "ok" and each["flags"] == "slave"]
        at_rest = pairs(self._ask(sentinel, "MASTER"))["flags"] == "master"
        return at_rest and len(ready) == 1 and str(self._ask(sentinel, "CKQUORUM")).startswith("OK 3")


def pairs(flat: list[str]) -> dict[str, str]:
    """A reply of names and values."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
