"""A Redis server for one question, on a free port, which keeps nothing on disk; and what it says about itself."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

PATIENCE = 10.0

HOST = "127.0.0.1"

ANYWHERE = set(range(os.cpu_count() or 1))

SYSTEM = "/usr/sbin:/usr/local/sbin"


def program() -> str | None:
    """Where the server is."""
    return shutil.which("redis-server") or shutil.which("redis-server", path=SYSTEM)


class RedisServer:
    """Runs until the end of the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind((HOST, 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://{HOST}:{self.port}/0"

    def __enter__(self) -> Self:
        options = ["--port", str(self.port), "--bind", HOST, "--save", "", "--dir", str(self._folder)]
        self._process = subprocess.Popen([program() or "redis-server", *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._ask = Plain(self.port)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return self

    def __exit__(self, *error: object) -> None:
        self._ask.close()
        self._process.terminate()
        self._process.wait(PATIENCE)

    def run_on(self, cores: set[int]) -> None:
        """Let it use only these, and this thread too."""
        os.sched_setaffinity(self._process.pid, cores)
        os.sched_setaffinity(0, cores)

    def commands(self) -> dict[str, int]:
        """How often each command was called so far, those inside scripts included; without what asks for this."""
        found = {}
        for line in self._info("commandstats"):
            name, _, facts = line.removeprefix("cmdstat_").partition(":calls=")
            found[name] = int(facts.partition(",")[0])
        return {name: count for name, count in found.items() if name not in {"info", "client|list", "flushall"}}

    def connections(self) -> int:
        """How many there are besides our own."""
        return len(self._ask("CLIENT", "LIST").splitlines()) - 1

    def busy(self) -> float:
        """Seconds of a core that it has used so far."""
        facts = dict(line.split(":") for line in self._info("cpu"))
        return float(facts["used_cpu_sys"]) + float(facts["used_cpu_user"])

    def clear(self) -> None:
        """No key is left."""
        self._ask("FLUSHALL")

    def _info(self, section: str) -> list[str]:
        return [line for line in self._ask("INFO", section).splitlines() if ":" in line]


class Plain:
    """A connection that sends a command and reads its answer: a number, a text or nothing."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def __call__(self, *words: str) -> Any:
        self._socket.sendall(encoded(*words))
        line = self._file.readline()
        if line[:1] == b"-":
            raise RuntimeError(line.decode())
        if line[:1] != b"$":
            return line[1:-2].decode()
        if line == b"$-1\r\n":
            return None
        return self._file.read(int(line[1:]) + 2)[:-2].decode()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def encoded(*words: str) -> bytes:
    """A command on the wire."""
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
