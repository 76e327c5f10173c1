"""A PostgreSQL server for one question, on a free port: it writes to disk as a server should."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

PATIENCE = 20.0

HOST = "127.0.0.1"

ANYWHERE = set(range(os.cpu_count() or 1))


def program(name: str) -> str | None:
    """Where one of its programs is."""
    return shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)


class PostgresServer:
    """Runs until the end of the ``with`` block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-bench-", ignore_cleanup_errors=True)
        data = Path(self._folder.name) / "data"
        if os.geteuid() == 0:  # these servers refuse to run as root
            os.chown(self._folder.name, _account().pw_uid, _account().pw_gid)
        make = [program("initdb") or "initdb", "--no-sync", "--auth=trust", "--username=bench", "-D", str(data)]
        subprocess.run([*_unprivileged(), *make], check=True, stdout=subprocess.DEVNULL, cwd="/")
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port: int = free.getsockname()[1]
        options = [f"--port={self.port}", f"--listen_addresses={HOST}", f"--unix_socket_directories={data}"]
        command = [*_unprivileged(), program("postgres") or "postgres", "-D", str(data), *options]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd="/")
        self._until_it_answers()
        return self

    def __exit__(self, *error: object) -> None:
        os.kill(self._process.pid, signal.SIGINT)
        self._process.wait(PATIENCE)
        self._folder.cleanup()

    def url(self, scheme: str = "postgresql", options: str = "") -> str:
        """How it is reached."""
        return f"{scheme}://bench@{HOST}:{self.port}/postgres{options}"

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection whose statements are prepared at once."""
        return psycopg.connect(self.url(), autocommit=True, prepare_threshold=0)

    def connections(self, name: str) -> int:
        """How many there are of the application *name*."""
        with self.connect() as connection:
            found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (name,))
            return int((found.fetchone() or (0,))[0])

    def run_on(self, cores: set[int]) -> None:
        """Let it use only these, and this thread too."""
        children = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=False)
        for pid in [self._process.pid, *map(int, children.stdout.split()), 0]:
            os.sched_setaffinity(pid, cores)

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return


def _unprivileged() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_account().pw_uid}", f"--regid={_account().pw_gid}", "--clear-groups"]


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")
