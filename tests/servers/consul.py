"""Consul agents for tests: one in development mode, or three servers, and what tests do to them from outside."""

from __future__ import annotations

import itertools
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode

from servers.certificates import Certificates
from servers.ports import Port
from servers.process import Process, until
from servers.programs import program

HOST = "127.0.0.1"

MASTER = "00000000-dead-beef-0000-000000000000"
"""The token that may do everything where there are rules."""

SHORTEST_TTL = 0.1
"""Seconds: what the agents have as session_ttl_min, so that tests need not wait for ten."""


_ROOTS = itertools.count(1)


ELECTION = 60.0
"""Seconds for a server to open its log, to elect itself or another, and to write, on a busy machine."""


class ConsulServer:
    """One agent, until the end of the ``with`` block; alone in development mode, unless it is to *join* others.

    *config* are further settings. With *tls* it speaks HTTPS only.
    """

    def __init__(
        self,
        name: str = "alone",
        *,
        config: dict[str, Any] | None = None,
        tls: Certificates | None = None,
        alone: bool = True,
    ) -> None:
        self._program = program("consul")
        self.name, self._config, self._tls, self._alone = name, config or {}, tls, alone
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-consul-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self._ports = [Port() for _ in range(3)]
        self.port, self.rpc_port, self.serf_port = (port.number for port in self._ports)
        self._process: Process | None = None
        self.root = "dibs"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
        for port in self._ports:
            port.give_back()
        self._temporary.cleanup()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    @property
    def url(self) -> str:
        """How a client reaches it, with no lock-delay."""
        return self.url_at()

    def url_at(self, address: tuple[str, int] | None = None, **options: str) -> str:
        """The same through another address, or with other options."""
        host, port = address or self.address
        scheme, ca = ("consuls", {"ca": str(self._tls.authority)}) if self._tls else ("consul", {})
        query = {"min_ttl": str(SHORTEST_TTL), **ca, **options}
        return f"{scheme}://{host}:{port}/{self.root}?{urlencode(query)}"

    def begin(self) -> None:
        """Start it, and do not wait."""
        (self.folder / "config.json").write_text(json.dumps(self._settings()), encoding="utf-8")
        how = ["-dev"] if self._alone else ["-server", "-data-dir", str(self.folder / "data")]
        command = [self._program.path, "agent", *how, "-config-file", str(self.folder / "config.json")]
        self._process = Process(command, self.folder / "log", self._program.environment)

    def start(self) -> Self:
        """Start it with the data that is there, and wait until it answers."""
        self.begin()
        self.process.until(self.has_leader, ELECTION)
        return self

    @property
    def process(self) -> Process:
        """It runs, or has run."""
        assert self._process is not None
        return self._process

    def kill9(self) -> None:
        """End it as a crash does."""
        self.process.kill()

    def stop(self) -> None:
        """Let it stand still."""
        self.process.stop()

    def cont(self) -> None:
        """Let it go on."""
        self.process.cont()

    def reset(self) -> Self:
        """As new, for the next test: running, empty, and with another root: a lock-delay that runs goes on."""
        self.root = f"dibs-{next(_ROOTS)}"
        if not self.process.runs:
            self.start()
        self.ask("DELETE", "/v1/kv/?recurse")
        for session in self.sessions():
            self.ask("PUT", f"/v1/session/destroy/{session['ID']}")
        return self

    # --- what tests ask --------------------------------------------------------------------------------------

    def ask(self, method: str, where: str, body: Any = None, token: str = "") -> Any:
        """Ask, and return the answer; None for what is not there."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        headers = {"X-Consul-Token": token or (MASTER if "acl" in self._config else "")}
        request = urllib.request.Request(f"http://{HOST}:{self.port}{where}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return json.loads(said) if said.startswith((b"[", b"{", b"true", b"false", b'"')) else said

    def has_leader(self) -> bool:
        """Whether there is one, which can write."""
        if self._tls is not None:
            return "agent: Synced node info" in (self.folder / "log").read_text(encoding="utf-8")
        return bool(self.ask("PUT", "/v1/kv/ready", b"yes"))

    def kept(self) -> list[str]:
        """All keys of locks."""
        return self.ask("GET", f"/v1/kv/{self.root}/?keys&consistent") or []

    def kv(self, key: str) -> dict[str, Any]:
        """One key."""
        [found] = self.ask("GET", f"/v1/kv/{quote(key)}?consistent")
        return dict(found)

    def sessions(self) -> list[dict[str, Any]]:
        """All that there are."""
        return list(self.ask("GET", "/v1/session/list?consistent"))

    def _settings(self) -> dict[str, Any]:
        ports = {"http": self.port, "server": self.rpc_port, "serf_lan": self.serf_port}
        if self._tls is not None:
            ports = {**ports, "http": -1, "https": self.port}
        return {
            "node_name": self.name,
            "bind_addr": HOST,
            "ports": {**ports, "serf_wan": -1, "dns": -1, "grpc": -1},
            "session_ttl_min": f"{round(SHORTEST_TTL * 1000)}ms",
            "performance": {"raft_multiplier": 1},
            "limits": {"http_max_conns_per_client": 1000},
            "disable_update_check": True,
            **(
                {"cert_file": str(self._tls.server), "key_file": str(self._tls.key(self._tls.server))}
                if self._tls
                else {}
            ),
            **self._config,
        }


class ConsulTrio:
    """Three servers of one datacenter, until the end of the ``with`` block."""

    def __init__(self) -> None:
        self.servers = [ConsulServer(f"server-{number}", alone=False) for number in range(3)]
        joined = {"bootstrap_expect": 3, "retry_join": [f"{HOST}:{server.serf_port}" for server in self.servers]}
        for server in self.servers:
            server._config = {**joined, "retry_interval": "1s"}  # only now are all ports known
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.begin()
                self._stack.push(server)
            for server in self.servers:
                server.process.until(server.has_leader, ELECTION)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """All of them."""
        return self.url_of(self.servers)

    def url_of(self, servers: list[ConsulServer], **options: str) -> str:
        """Some of them."""
        query = {"min_ttl": str(SHORTEST_TTL), **options}
        hosts = ",".join(f"{HOST}:{server.port}" for server in servers)
        return f"consul://{hosts}?{urlencode(query)}"

    @property
    def leader(self) -> ConsulServer:
        """Who leads."""
        address = next(filter(None, (self._leads(server) for server in self.servers if server.process.runs)))
        return next(server for server in self.servers if address == f"{HOST}:{server.rpc_port}")

    @property
    def followers(self) -> list[ConsulServer]:
        """Who does not."""
        return [server for server in self.servers if server is not self.leader]

    @contextmanager
    def without(self, server: ConsulServer) -> Iterator[None]:
        """Kill it, and start it again at the end."""
        server.kill9()
        try:
            yield
        finally:
            server.begin()
            until(self.has_healed, "all three serve again", ELECTION)

    def has_healed(self) -> bool:
        """Whether each of them can write."""
        try:
            return all(server.has_leader() for server in self.servers)
        except OSError:
            return False

    def _leads(self, server: ConsulServer) -> str:
        try:
            return str(server.ask("GET", "/v1/status/leader") or "")
        except OSError:
            return ""
