"""A Redis or Valkey server of its own for tests: how it keeps data, who may use it, and how it is reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from servers.certificates import Certificates
from servers.clock import Clock
from servers.node import HOST, Kind, Node
from servers.process import until

Persistence = Literal["none", "rdb", "aof", "aof-always"]

PERSISTENCE: dict[Persistence, list[str]] = {
    "none": ['save ""'],
    "rdb": ["save 3600 1"],  # saved at an orderly end, as good as never before
    "aof": ['save ""', "appendonly yes", "appendfsync everysec"],
    "aof-always": ['save ""', "appendonly yes", "appendfsync always"],
}

US = ("tests", "tests")
"""The user of `command`, where there are others, or a password."""


class RedisServer(Node):
    """One server, until the end of the ``with`` block.

        with RedisServer("valkey", persistence="aof") as server:
            server.command("SET", "key", "value")
            server.kill9()
            server.start()

    With *password* the default user has one. *users* are further ones, as in ``alice on >secret ~* &* +@all``; a line
    for ``default`` is possible too. *config* are further lines of its configuration.
    """

    def __init__(
        self,
        kind: Kind = "redis",
        *,
        persistence: Persistence = "none",
        tls: Certificates | None = None,
        password: str = "",
        users: Sequence[str] = (),
        clock: Clock | None = None,
        config: Sequence[str] = (),
    ) -> None:
        self._persistence, self._password, self._certificates = persistence, password, tls
        rights = [f"requirepass {password}"] if password else []
        rights += [f"user {user}" for user in users]
        if rights:
            rights.append("user {} on >{} ~* &* +@all".format(*US))
        lines = [*PERSISTENCE[persistence], "repl-diskless-sync-delay 0", *rights, *config]
        super().__init__(
            kind,
            lines + (tls.server_config if tls else []),
            tls=tls.client_context() if tls else None,
            user=US if rights else None,
            clock=clock,
        )
        self._config = [*self._config, f"unixsocket {self.socket}"]
        self._before: dict[str, str] = {}

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        return self.folder / "socket"

    @property
    def url(self) -> str:
        """How a client reaches it, with the password of the default user if there is one."""
        return self.url_for("", self._password)

    def url_for(self, user: str, password: str, database: int = 0) -> str:
        """The URL for a user."""
        rights = f"{quote(user)}:{quote(password)}@" if password else ""
        scheme, query = "redis", ""
        if self._certificates:
            scheme, query = "rediss", f"?ssl_ca_certs={quote(str(self._certificates.authority))}"
        return f"{scheme}://{rights}{HOST}:{self.port}/{database}{query}"

    @property
    def unix_url(self) -> str:
        """The same through its socket."""
        rights = f":{quote(self._password)}@" if self._password else ""
        return f"unix://{rights}{self.socket}?db=0"

    def config_set(self, name: str, value: str) -> None:
        """Change a setting, until `reset`."""
        self._before.setdefault(name, self.command("CONFIG", "GET", name)[1])
        self.command("CONFIG", "SET", name, value)

    def reset(self) -> None:
        """As new, for the next test: running, empty, without scripts, its settings as they were."""
        self.cont()
        if not self.runs:
            self.start()
        with self.client() as client:
            for name, value in self._before.items():
                client("CONFIG", "SET", name, value)
            client("FLUSHALL", "SYNC")
            client("SCRIPT", "FLUSH", "SYNC")
        self._before.clear()
        self._forget_dump()

    def replicate(self, master: Node) -> None:
        """Become a replica of *master*, and wait until the copy is there and what is written from now on follows."""
        self.command("REPLICAOF", *master.address)
        online = f"port={self.port},state=online"  # the master's word: its replica says "up" a moment before
        until(lambda: online in str(master.command("INFO", "replication")), "the replica has its copy")

    def restart(self, *, keep_data: bool) -> None:
        """End it and start it again on its port, with all its data, saved in good order, or with none."""
        super().restart(keep_data=keep_data)
        self._before.clear()
        self._forget_dump()

    def _forget_dump(self) -> None:
        """What was saved for a restart, or for a replica, must not come back after a later crash."""
        if self._persistence == "none":
            (self.data / "dump.rdb").unlink(missing_ok=True)
