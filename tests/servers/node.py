"""One process that speaks RESP: a server, a sentinel or a member of a cluster, and what tests do to it."""

from __future__ import annotations

import shutil
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self

from servers.clock import Clock
from servers.ports import Port
from servers.process import Process
from servers.programs import program
from servers.resp import Resp, RespError

Kind = Literal["redis", "valkey"]

HOST = "127.0.0.1"


class Node:
    """Runs ``redis-server`` or ``valkey-server`` with *config*, which the program may rewrite, in its own folder."""

    def __init__(
        self,
        kind: Kind,
        config: Sequence[str],
        *,
        arguments: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.kind = kind
        self._program = program(f"{kind}-server")
        self._temporary = tempfile.TemporaryDirectory(prefix=f"dibs-{kind}-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        self.data = self.folder / "data"
        self.data.mkdir()
        self._port = Port()
        self.port = self._port.number
        self._config, self._arguments, self._tls, self._user = config, arguments, tls, user
        self._environment: Mapping[str, str] = {**self._program.environment, **(clock.environment if clock else {})}
        self._process: Process | None = None

    def __enter__(self) -> Self:
        try:
            self.write_config(self._config)
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.kill()
        self._port.give_back()
        self._temporary.cleanup()

    def write_config(self, lines: Sequence[str]) -> None:
        """What it reads at its next start."""
        port = "tls-port" if self._tls else "port"
        always = ["bind " + HOST, f"{port} {self.port}", f"dir {self.data}", "enable-debug-command yes"]
        (self.folder / "server.conf").write_text("\n".join([*always, *lines]) + "\n", encoding="utf-8")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return HOST, self.port

    @property
    def runs(self) -> bool:
        """Whether its process exists."""
        return self._process is not None and self._process.runs

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def command(self, *words: str | bytes | float) -> Any:
        """Do a command on a new connection, with all rights. What belongs together, as SET and WAIT, needs `client`."""
        with self.client() as client:
            return client(*words)

    def client(self) -> Resp:
        """A connection of its own, to subscribe or to hold."""
        client = Resp(self.address, tls=self._tls)
        if self._user is not None:
            client("AUTH", *self._user)
        return client

    def info(self, section: str) -> dict[str, str]:
        """What INFO tells."""
        lines = str(self.command("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def start(self) -> Self:
        """Start its process, with the data that is there, and wait until it answers."""
        return self.begin().wait()

    def begin(self) -> Self:
        """Start its process, and do not wait."""
        command = [self._program.path, str(self.folder / "server.conf"), *self._arguments]
        self._process = Process(command, self.folder / "log", self._environment)
        return self

    def wait(self) -> Self:
        """Wait until it answers."""
        assert self._process is not None
        self._process.until(self._answers)
        return self

    def kill9(self) -> None:
        """Kill it; what it wrote stays. Return when it is dead; `start` brings it back."""
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        """Let it stand still: it accepts connections, as its kernel does, and answers nothing."""
        assert self._process is not None
        self._process.stop()

    def cont(self) -> None:
        """Let it go on after a `stop`; a dead one stays dead."""
        if self._process is not None and self._process.runs:
            self._process.cont()

    def restart(self, *, keep_data: bool) -> None:
        """End it and start it again on its port, with all its data, saved in good order, or with none."""
        if keep_data:
            self._shut_down()
        else:
            self.kill9()
            shutil.rmtree(self.data)
            self.data.mkdir()
        self.start()

    def _shut_down(self) -> None:
        assert self._process is not None
        self.cont()
        with suppress(ConnectionError):  # its way to say yes
            self.command("SHUTDOWN", "SAVE")
        self._process.ended()

    def _answers(self) -> bool:
        try:
            return bool(self.command("PING") == "PONG")
        except RespError:  # LOADING, which is not yet an answer
            return False
