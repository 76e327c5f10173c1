"""ZooKeeper servers for tests: one, or an ensemble of three, with short ticks, on loopback, in little memory."""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from servers.certificates import Certificates
from servers.ports import Port
from servers.process import Process, until
from servers.programs import program

HOST = "127.0.0.1"

TICK_MS = 100
"""The unit of time of the servers: a session is at least two of them, and its end is seen up to one late."""

JARS = ["zookeeper*", "slf4j-api*", "slf4j-simple*", "netty*", "commons-*", "metrics-core*", "snappy*", "jackson-*"]

SYSTEM = Path("/usr/share/java")
"""Where the jars are that were there before, when the server is unpacked into a folder of ours."""

LOG_HEADER = 16
"""Bytes without which a file of the transaction log is none."""

FAST = {
    "zookeeper.admin.enableServer": "false",
    "zookeeper.preAllocSize": "128",
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
}


class ZooKeeperServer:
    """One server, until the end of the ``with`` block.

        with ZooKeeperServer() as server:
            client = dibs.connect(server.url)

    *lines* are added to its configuration, such as those about the ensemble that it is *number* in. With *durable* it
    writes as a server should. A *tidy* one removes empty containers at once, not after a minute, and not, as else here,
    never.
    """

    def __init__(
        self,
        lines: Sequence[str] = (),
        number: int = 0,
        *,
        tls: Certificates | None = None,
        durable: bool = False,
        tidy: bool = False,
    ) -> None:
        self._java, home = program("java"), Path(program("zkServer.sh").path).parents[2] / "java"
        self._jars = [
            str(jar) for pattern in JARS for folder in (home, SYSTEM) for jar in folder.glob(f"{pattern}.jar")
        ]
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-zookeeper-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self._port = Port()
        self.port = self._port.number
        self._asked = Port() if tls else self._port  # its words are spoken without TLS
        self._lines, self._number, self._tls = lines, number, tls
        self._properties = {
            **FAST,
            "zookeeper.forceSync": "yes" if durable else "no",
            "znode.container.checkIntervalMs": "200" if tidy else "86400000",
            "znode.container.maxPerMinute": "1000000",
        }
        self._process: Process | None = None
        self.stood_still = False

    def __enter__(self) -> Self:
        try:
            return self.begin().wait()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
        self._port.give_back()
        self._asked.give_back()
        self._temporary.cleanup()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    @property
    def url(self) -> str:
        """How a client reaches it."""
        if self._tls:
            return f"zookeepers://{HOST}:{self.port}?ca={self._tls.authority}"
        return f"zookeeper://{HOST}:{self.port}"

    @property
    def runs(self) -> bool:
        """Whether its process exists."""
        return self._process is not None and self._process.runs

    def begin(self) -> Self:
        """Start its process, with the data that is there, and do not wait."""
        self._write_config()
        self._drop_empty_logs()
        small = ["-Xmx64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
        properties = [f"-D{name}={value}" for name, value in self._properties.items()]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        classes = ["-cp", ":".join(self._jars)]
        command = [self._java.path, *small, *properties, *classes, main, str(self.folder / "zoo.cfg")]
        self._process = Process(command, self.folder / "log", self._java.environment)
        return self

    def wait(self) -> Self:
        """Wait until it serves."""
        assert self._process is not None
        self._process.until(self._serves)
        return self

    def start(self) -> Self:
        """Start it again, with the data that is there, and wait until it serves."""
        return self.begin().wait()

    def kill9(self) -> None:
        """Kill it; what it wrote stays."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Let it stand still: it accepts connections, as its kernel does, and answers nothing."""
        assert self._process is not None
        self._process.stop()
        self.stood_still = True

    def cont(self) -> None:
        """Let it go on after a `stop`."""
        if self._process is not None and self._process.runs:
            self._process.cont()

    def reset(self) -> Self:
        """For the next test: it runs and serves. Tests that count have a chroot of their own."""
        self.cont()
        if not self.runs:
            self.begin()
        return self.wait()

    def says(self, word: str, patience: float = 5.0) -> str:
        """What it answers to one of its four-letter words."""
        with socket.create_connection((HOST, self._asked.number), timeout=patience) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def number(self, name: str) -> int:
        """A number of ``mntr``."""
        found = re.search(rf"^{name}\t(\d+)", self.says("mntr"), re.MULTILINE)
        assert found, name
        return int(found[1])

    def sessions(self) -> set[int]:
        """The sessions that live, by the server."""
        head = self.says("dump").partition("ephemeral nodes dump")[0]
        return {int(number, 16) for number in re.findall(r"^\t?(0x[0-9a-f]+)$", head, re.MULTILINE)}

    @property
    def role(self) -> str:
        """``standalone``, ``leader`` or ``follower``; nothing while it is none."""
        try:
            said = self.says("srvr", 0.2)  # one that starts may have accepted us and never answer
        except OSError:
            return ""
        found = re.search(r"^Mode: (\w+)", said, re.MULTILINE)
        return found[1] if found else ""

    def writes(self) -> bool:
        """Whether a write through this server is done now."""
        client = KazooClient(f"{HOST}:{self.port}", timeout=1.0)
        try:
            client.start(timeout=1.0)
            client.delete(client.create("/written", ephemeral=True, sequence=True))
        except (KazooException, KazooTimeoutError):
            return False
        else:
            return True
        finally:
            client.stop()
            client.close()

    def _serves(self) -> bool:
        return bool(self.role)

    def _write_config(self) -> None:
        lines = [
            f"dataDir={self.folder}/data",
            f"tickTime={TICK_MS}",
            "initLimit=50",
            "syncLimit=20",
            "maxClientCnxns=0",
            "maxSessionTimeout=2000000",
            "4lw.commands.whitelist=*",
            "snapCount=1000000",
            f"clientPort={self._asked.number}",
            f"clientPortAddress={HOST}",
            *(self._tls_lines(self._tls) if self._tls else []),
            *self._lines,
        ]
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data" / "myid").write_text(str(self._number), encoding="utf-8")
        (self.folder / "zoo.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _drop_empty_logs(self) -> None:
        """Do what its operator has to: killed when it began a log, it does not start with it (ZOOKEEPER-2332)."""
        for log in self.folder.glob("data/version-2/log.*"):
            if log.stat().st_size < LOG_HEADER:
                log.unlink()

    def _tls_lines(self, tls: Certificates) -> list[str]:
        store = self.folder / "server.pem"
        pem = [tls.key(tls.server).read_text(encoding="utf-8"), tls.server.read_text(encoding="utf-8")]
        store.write_text("".join(pem), encoding="utf-8")
        return [
            f"secureClientPort={self.port}",
            f"secureClientPortAddress={HOST}",
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"ssl.keyStore.location={store}",
            f"ssl.trustStore.location={tls.authority}",
            "ssl.trustStore.type=PEM",
            "ssl.clientAuth=none",
        ]


class Ensemble:
    """Three servers that elect a leader.

    with Ensemble() as ensemble:
        ensemble.leader.kill9()
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            ports = [Port() for _ in range(6)]
            for port in ports:
                stack.callback(port.give_back)
            pairs = zip(ports[::2], ports[1::2], strict=True)
            members = [
                f"server.{number}={HOST}:{peers.number}:{votes.number}"
                for number, (peers, votes) in enumerate(pairs, 1)
            ]
            self.servers = [ZooKeeperServer(members, number) for number in (1, 2, 3)]
            for server in self.servers:
                stack.callback(server.__exit__)
                server.begin()
            self.reset()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """How a client finds all of them."""
        return "zookeeper://" + ",".join(f"{HOST}:{server.port}" for server in self.servers)

    @property
    def leader(self) -> ZooKeeperServer:
        """The one that leads."""
        until(lambda: "leader" in [server.role for server in self.servers], "there is a leader")
        return next(server for server in self.servers if server.role == "leader")

    @property
    def followers(self) -> list[ZooKeeperServer]:
        """The others."""
        leader = self.leader
        return [server for server in self.servers if server is not leader]

    def reset(self) -> Self:
        """For the next test: all serve, and follow one leader, also after it stood still and its followers left it."""
        for server in self.servers:
            server.cont()
            if not server.runs:
                server.begin()
        for server in self.servers:
            server.wait()
        until(self._agrees, "one of them leads, and the others follow it")
        if any(server.stood_still for server in self.servers):
            self._write_through_each()
        return self

    def _write_through_each(self) -> None:
        """A server that stood still for about the sync limit may be about to leave its leader, and not know it yet.

        It does not leave once it has heard of a write after that.
        """
        for server in self.servers:
            until(server.writes, f"the server on port {server.port} takes part in a write")
            server.stood_still = False
        until(self._agrees, "one of them leads, and the others follow it")

    def _agrees(self) -> bool:
        roles = [server.role for server in self.servers]
        if sorted(roles) != ["follower", "follower", "leader"]:
            return False
        return self.servers[roles.index("leader")].number("zk_synced_followers") == len(roles) - 1
