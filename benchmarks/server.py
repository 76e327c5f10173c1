"""A server for one question: a process in a folder of its own, on a free port, that writes to disk as it should."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

PATIENCE = 20.0

HOST = "127.0.0.1"

UNPACKED = Path(__file__).parent.parent / ".servers"


def program(name: str) -> str | None:
    """Where it is."""
    return shutil.which(name) or shutil.which(name, path=UNPACKED / name / "usr/bin")


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as free:
        free.bind((HOST, 0))
        return int(free.getsockname()[1])


class Server:
    """Runs until the end of the ``with`` block."""

    def command(self, folder: Path) -> list[str]:
        """Starts it, with all it keeps in *folder*."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it works already; an OSError says no too."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="dibs-bench-", ignore_cleanup_errors=True)
        self.port = free_port()
        command = self.command(Path(self._folder.name))
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._until_it_answers()
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._folder.cleanup()

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if self.answers():
                    return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)
