"""etcd servers of their own for tests, one or three: their data in memory, and what tests do to them."""

from __future__ import annotations

import json
import ssl
import tempfile
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from servers.certificates import Certificates
from servers.ports import Port
from servers.process import Process, until
from servers.programs import program

HOST = "127.0.0.1"

MEMORY = Path("/dev/shm")
"""Where files cost no time; etcd writes every change to disk, and there is no way to talk it out of that."""

QUICK = ["--heartbeat-interval", "10", "--election-timeout", "100"]
"""In ms: with these etcd allows leases of one second; with its own, only of two."""

PATIENT = ["--heartbeat-interval", "50", "--election-timeout", "500"]
"""For members of a cluster on a machine that has other things to do."""


class EtcdError(Exception):
    """It refused."""


class EtcdServer:
    """One server, until the end of the ``with`` block; of a cluster, if it is given *peers*.

        with EtcdServer() as server:
            server.call("kv/put", key="a", value="b")

    Keys and values of `call` are text. With *tls* it speaks only TLS, and asks for a client's certificate if
    *client_certificates* says so.
    """

    def __init__(
        self,
        *,
        tls: Certificates | None = None,
        client_certificates: bool = False,
        arguments: Sequence[str] = QUICK,
    ) -> None:
        self._program, self._tls, self._arguments = program("etcd"), tls, arguments
        where = str(MEMORY) if MEMORY.is_dir() else None
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-etcd-", dir=where, ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self._port, self._peer = Port(), Port()
        self.port, self.peer = self._port.number, f"http://{HOST}:{self._peer.number}"
        self.name = f"m{self.port}"
        self._asks_for_certificates = client_certificates
        self._cluster: Sequence[EtcdServer] = [self]
        self._process: Process | None = None
        self.token = ""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
        self._port.give_back()
        self._peer.give_back()
        self._temporary.cleanup()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    @property
    def url(self) -> str:
        """How a client reaches it."""
        if self._tls is None:
            return f"etcd://{HOST}:{self.port}"
        return f"etcds://{HOST}:{self.port}?ca={quote(str(self._tls.authority), safe='')}"

    def start(self) -> Self:
        """Start it, with the data it has, and wait until it can be written to."""
        self.begin()
        self.wait()
        return self

    def begin(self) -> None:
        """Start it, and wait for nothing."""
        scheme = "http" if self._tls is None else "https"
        here = f"{scheme}://{HOST}:{self.port}"
        members = ",".join(f"{member.name}={member.peer}" for member in self._cluster)
        command = [self._program.path, "--name", self.name, "--data-dir", str(self.folder / "data"), *self._arguments]
        command += ["--listen-client-urls", here, "--advertise-client-urls", here, "--log-level", "warn"]
        command += ["--logger", "zap", "--log-outputs", "stderr"]
        command += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        command += ["--initial-cluster", members, "--initial-cluster-token", self._cluster[0].name]
        if self._tls is not None:
            command += ["--cert-file", str(self._tls.server), "--key-file", str(self._tls.key(self._tls.server))]
            command += ["--trusted-ca-file", str(self._tls.authority)] if self._asks_for_certificates else []
            command += ["--client-cert-auth"] if self._asks_for_certificates else []
        self._process = Process(command, self.folder / "log", self._program.environment)

    def wait(self) -> None:
        """Wait until it answers, by a majority."""
        assert self._process is not None
        self._process.until(self._answers)

    def join(self, cluster: Sequence[EtcdServer]) -> None:
        """Be a member of *cluster*, from the first start on."""
        self._cluster = cluster

    def kill9(self) -> None:
        """End it as a power cut does."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Let it stand still."""
        assert self._process is not None
        self._process.stop()

    def cont(self) -> None:
        """Let it go on."""
        if self._process is not None and self._process.runs:
            self._process.cont()

    @property
    def runs(self) -> bool:
        """Whether its process exists."""
        return self._process is not None and self._process.runs

    @property
    def leads(self) -> bool:
        """Whether it is the leader."""
        status = self.call("maintenance/status")
        return bool(status.get("leader") == status["header"]["member_id"])

    def call(self, method: str, **body: Any) -> dict[str, Any]:
        """Call the gateway, as text; `EtcdError` if it refuses, `OSError` if it is not there."""
        for name in ("key", "range_end", "value"):
            if name in body:
                body[name] = b64encode(body[name].encode()).decode()
        scheme = "http" if self._tls is None else "https"
        request = urllib.request.Request(f"{scheme}://{HOST}:{self.port}/v3/{method}", json.dumps(body).encode())
        if self.token:
            request.add_header("Authorization", self.token)
        try:
            with urllib.request.urlopen(request, timeout=5, context=self._context()) as answer:
                return dict(json.loads(answer.read()))
        except urllib.error.HTTPError as error:
            with error:
                raise EtcdError(error.read().decode()) from None

    def keys_under(self, prefix: str = "") -> list[str]:
        """All keys that begin with *prefix*, in order."""
        begin = prefix or "\0"
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\0"
        found = self.call("kv/range", key=begin, range_end=end, keys_only=True).get("kvs", [])
        return [b64decode(pair["key"]).decode() for pair in found]

    def keys_of_locks(self) -> list[str]:
        """All keys but the marks of what was given back and may come late: they end by themselves, after 3 minutes."""
        return [key for key in self.keys_under() if not key.startswith("dibs/given-back/")]

    def allow(self, **roles: str) -> Self:
        """From now on there are users: root, and each of *roles*, who may read and write what begins with that text.

        The password of each is its name.
        """
        for user, prefix in {"root": "", **roles}.items():
            self.call("auth/user/add", name=user, password=user)
            self.call("auth/role/add", name=user)
            if prefix:
                span = {"key": prefix, "range_end": prefix[:-1] + chr(ord(prefix[-1]) + 1)}
                perm = {name: b64encode(text.encode()).decode() for name, text in span.items()}
                self.call("auth/role/grant", name=user, perm={"permType": "READWRITE", **perm})
            self.call("auth/user/grant", user=user, role=user)
        self.call("auth/enable")
        self.token = str(self.call("auth/authenticate", name="root", password="root")["token"])
        return self

    def leases(self) -> list[str]:
        """The ids of all leases."""
        return [lease["ID"] for lease in self.call("lease/leases").get("leases", [])]

    def reset(self) -> None:
        """As new, for the next test: running, and empty."""
        self.cont()
        if not self.runs:
            self.start()
        for lease in self.leases():
            self.call("lease/revoke", ID=lease)
        self.call("kv/deleterange", key="\0", range_end="\0")

    def _answers(self) -> bool:
        try:
            self.call("kv/put", key="ready", value="")
        except EtcdError as error:
            return "user name is empty" in str(error)  # it has users, and so it answers
        self.call("kv/deleterange", key="ready")
        return True

    def _context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        context = self._tls.client_context()
        if self._asks_for_certificates:
            context.load_cert_chain(self._tls.client, self._tls.key(self._tls.client))
        return context


class EtcdCluster:
    """Three members, until the end of the ``with`` block."""

    def __init__(self) -> None:
        self.members = [EtcdServer(arguments=PATIENT) for _ in range(3)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for member in self.members:
                member.join(self.members)
                stack.push(member)
                member.begin()
            for member in self.members:
                member.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """How a client reaches them all."""
        return self.url_by([member.port for member in self.members])

    def url_by(self, ports: Sequence[int]) -> str:
        """The URL with other ports, such as those of proxies."""
        return "etcd://" + ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def leader(self) -> EtcdServer:
        """Whichever it is now."""
        found: list[EtcdServer] = []

        def look() -> bool:
            found[:] = [member for member in self.members if member.runs and member.leads]
            return len(found) == 1

        until(look, "there is a leader")
        return found[0]

    def reset(self) -> None:
        """As new: all run, all answer, nothing is there."""
        for member in self.members:
            member.cont()
            if not member.runs:
                member.begin()
        for member in self.members:
            member.wait()
        self.members[0].reset()
