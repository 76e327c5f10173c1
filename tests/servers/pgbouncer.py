"""A PgBouncer before a PostgreSQL server: many clients share few sessions."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal, Self

import psycopg

from servers.ports import Port
from servers.postgres import HOST, USER, PostgresServer, give_to_unprivileged, unprivileged, user
from servers.process import Process, until
from servers.programs import program

CONFIG = """[databases]
* = host={host} port={server}
[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
user = {user}
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 500
server_reset_query =
"""


class PgBouncer:
    """One pooler, until the end of the ``with`` block."""

    def __init__(
        self, server: PostgresServer, mode: Literal["session", "transaction"] = "transaction", *, size: int = 3
    ) -> None:
        self._program, self._server = program("pgbouncer"), server
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-pgbouncer-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self._port = Port()
        self._mode, self._size = mode, size
        self._process: Process | None = None

    def __enter__(self) -> Self:
        give_to_unprivileged(self._folder)
        config = self._folder / "pgbouncer.ini"
        config.write_text(
            CONFIG.format(
                host=HOST,
                server=self._server.port,
                port=self._port.number,
                user=user(),
                folder=self._folder,
                mode=self._mode,
                size=self._size,
            ),
            encoding="utf-8",
        )
        (self._folder / "users").write_text(f'"{USER}" ""\n', encoding="utf-8")
        command = [*unprivileged(), self._program.path, str(config)]
        self._process = Process(command, self._folder / "log", self._program.environment)
        self._process.until(self._answers)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
        self._port.give_back()
        self._temporary.cleanup()

    @property
    def url(self) -> str:
        """How a client reaches the server through it."""
        return f"postgresql://{USER}@{HOST}:{self._port.number}/postgres"

    def reset(self) -> Self:
        """For the next test: an empty server, and no connection to it that somebody has ended."""
        self._server.empty()
        until(self._serves, "the pooler's connections are good")
        return self

    def _serves(self) -> bool:
        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
