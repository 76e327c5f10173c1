"""A PostgreSQL server of its own for tests: started as an ordinary user, restarted, cut down, copied and promoted."""

from __future__ import annotations

import functools
import getpass
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from dibs.stores.postgres.port.rights import GRANT
from dibs.stores.postgres.tables import ddl
from servers.ports import Port
from servers.process import Process, until
from servers.programs import program

HOST = "127.0.0.1"

USER = "tests"

FAST = {"fsync": "off", "full_page_writes": "off"}
"""What a test does without that kills no machine."""

SETTINGS = {
    "listen_addresses": HOST,
    "max_connections": "100",
    "shared_buffers": "16MB",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "hot_standby": "on",
    "lc_messages": "C",
    "log_min_messages": "warning",
    "max_wal_size": "256MB",
}


OTHERS = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"

EMPTY = """DO $$ DECLARE t text; BEGIN
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        IF t LIKE 'dibs%' THEN EXECUTE format('DELETE FROM %I', t);
        ELSE EXECUTE format('DROP TABLE %I CASCADE', t); END IF;
    END LOOP; END $$"""


class PostgresServer:
    """One server, until the end of the ``with`` block.

        with PostgresServer() as server:
            server.do("SELECT 1")
            server.restart()

    *settings* are further lines of its configuration. With *durable* it writes as a server should.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, durable: bool = False) -> None:
        self._programs = {name: program(name) for name in ("postgres", "initdb", "pg_basebackup")}
        self._settings = {**SETTINGS, **({} if durable else FAST), **(settings or {})}
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-postgres-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.data = self.folder / "data"
        self._port = Port()
        self.port = self._port.number
        self._process: Process | None = None
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def __enter__(self) -> Self:
        try:
            give_to_unprivileged(self.folder)
            self._initialize()
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        self.stop()
        self._port.give_back()
        self._temporary.cleanup()

    @property
    def url(self) -> str:
        """How a client reaches it."""
        return self.url_of()

    def url_of(self, database: str = "postgres", *, scheme: str = "postgresql", user: str = USER) -> str:
        """The same for another database, store or user."""
        return f"{scheme}://{user}@{HOST}:{self.port}/{database}"

    def url_of_locker(self, *, scheme: str = "postgresql") -> str:
        """How one reaches it who may do what the docs name and nothing else, with tables that `dibs init` made."""
        role = "DO $$ BEGIN CREATE ROLE locker LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        for sql in (role, ddl(), GRANT.format(user="locker")):
            self._kept().execute(sql.encode())
        return self.url_of(scheme=scheme, user="locker")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    def start(self) -> Self:
        """Start it with the data that is there, and wait until it answers."""
        options = [*self._setting("port", str(self.port)), *self._setting("unix_socket_directories", str(self.folder))]
        for name, value in self._settings.items():
            options += self._setting(name, value)
        found = self._programs["postgres"]
        command = [*unprivileged(), found.path, "-D", str(self.data), *options]
        self._process = Process(command, self.folder / "log", found.environment)
        self._process.until(self._answers)
        return self

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End it: SIGQUIT as a crash does, SIGINT in good order. Connections end with it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None and self._process.runs:
            os.kill(self._postmaster(), how)
            self._process.ended()
        self._process = None

    def restart(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End it, and start it again on its port with its data."""
        self.stop(how)
        self.start()

    def reset(self) -> Self:
        """As new, for the next test: running, nobody connected, no locks."""
        if self._process is None or not self._process.runs:
            self.start()
        while self.terminate(OTHERS):  # who has just been accepted is not in the list yet
            pass
        return self.empty()

    def empty(self) -> Self:
        """Without rows of ours and tables of others; whoever is connected stays."""
        self.sees(EMPTY)()
        return self

    def do(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Execute *sql* with all rights, and return its rows."""
        with self.connect() as connection:
            found = connection.execute(sql.encode(), values or None)
            return found.fetchall() if found.description else []

    def terminate(self, pids: str, values: Sequence[object] = ()) -> int:
        """End the backends that *pids* finds, wait until their sockets are closed too, and tell how many they were.

        A backend leaves pg_stat_activity some time before its process ends. A client that asks in between finds its
        connection alive, and never hears the answer.
        """
        sql = f"WITH them AS MATERIALIZED ({pids}) SELECT pid, pg_terminate_backend(pid) FROM them"
        ended = [pid for pid, _ in self._kept().execute(sql.encode(), values or None)]
        until(lambda: not any(map(exists, ended)), f"the backends {ended} have ended")
        return len(ended)

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of its own."""
        return psycopg.connect(self.url, autocommit=True, **options)

    def sees(self, sql: str, values: Sequence[object] = ()) -> Callable[[], bool]:
        """A question whose answer is whether the first value that *sql* finds is true."""
        connection = self._kept()

        def answer() -> bool:
            try:
                found = connection.execute(sql.encode(), values or None)
            except psycopg.errors.UndefinedTable:  # not there yet
                return False
            return bool(found.description and (found.fetchone() or (False,))[0])

        return answer

    def wait_until(self, sql: str, values: Sequence[object] = ()) -> None:
        """Wait until the first value that *sql* finds is true."""
        until(self.sees(sql, values), sql)

    def copy(self, **settings: str) -> Standby:
        """An asynchronous standby of it, for a ``with`` block."""
        return Standby(self, settings)

    def _kept(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The one connection of the test itself."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def _initialize(self) -> None:
        run_as_unprivileged(["cp", "-a", str(new_database().data), str(self.data)], {})

    def _postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])

    def _answers(self) -> bool:
        try:
            self.do("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    @staticmethod
    def _setting(name: str, value: str) -> list[str]:
        return ["-c", f"{name}={value}"]


class Standby(PostgresServer):
    """Follows *primary*, a little behind; `promote` makes it a primary."""

    def __init__(self, primary: PostgresServer, settings: Mapping[str, str]) -> None:
        self._primary = primary
        super().__init__(settings)

    def cut_off(self) -> None:
        """Let nothing reach it any more."""
        self.do("ALTER SYSTEM SET primary_conninfo = ''")
        self.do("SELECT pg_reload_conf()")
        self.wait_until("SELECT count(*) = 0 FROM pg_stat_wal_receiver")

    def promote(self) -> None:
        """Let it be a primary, with what has reached it."""
        self.do("SELECT pg_promote()")

    def _initialize(self) -> None:
        found = self._programs["pg_basebackup"]
        source = ["-h", HOST, "-p", str(self._primary.port), "-U", USER, "--checkpoint=fast", "--no-sync", "-R"]
        run_as_unprivileged([found.path, *source, "-D", str(self.data)], found.environment)


class NewDatabase:
    """What initdb makes, once for all servers: to copy it takes a fifth of the time."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="dibs-initdb-", ignore_cleanup_errors=True)
        folder, found = Path(self._temporary.name), program("initdb")
        give_to_unprivileged(folder)
        self.data = folder / "data"
        make = ["--no-sync", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        run_as_unprivileged([found.path, *make, "-D", str(self.data)], found.environment)


def exists(pid: int) -> bool:
    """Whether there is such a process, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@functools.cache
def new_database() -> NewDatabase:
    """The one of this test run."""
    return NewDatabase()


@functools.cache
def unprivileged() -> tuple[str, ...]:
    """What goes before a command so that it does not run as root, which these servers refuse."""
    if os.geteuid() != 0:
        return ()
    setpriv = program("setpriv").path
    return (setpriv, f"--reuid={account().pw_uid}", f"--regid={account().pw_gid}", "--clear-groups")


def account() -> pwd.struct_passwd:
    """The user that servers run as."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return pwd.getpwnam("nobody")


def user() -> str:
    """Its name."""
    return account().pw_name if os.geteuid() == 0 else getpass.getuser()


def give_to_unprivileged(folder: Path) -> None:
    """Let the servers own *folder*."""
    if os.geteuid() == 0:
        shutil.chown(folder, account().pw_uid, account().pw_gid)


def run_as_unprivileged(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a program that makes a database, to its end."""
    done = subprocess.run(
        [*unprivileged(), *command],
        env={**os.environ, **environment},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
