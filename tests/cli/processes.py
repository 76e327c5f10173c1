"""Real processes for the tests: `dibs` on a store of the test's own, and ways to wait for what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dibs.cli.signals import FORWARDED

T = TypeVar("T")

DIBS = [sys.executable, "-W", "error", "-m", "dibs"]

PATIENCE = 20.0
"""Seconds until a test gives up waiting for something that should come at once."""


def with_no_signal_ignored() -> None:
    """Undo in a child what pytest may have inherited: nohup, ``&`` and cron have some signals ignored."""
    for signum in (*FORWARDED, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)


def until(look: Callable[[], T], what: str = "it") -> T:
    """Look again and again until *look* finds something."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)
    return found


def state(pid: int) -> str:
    """The letter of a process's state: R, S, T (stopped) …; Z (dead, not yet reaped) or '' if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def alive(pid: int) -> bool:
    return state(pid) not in {"", "Z", "X"}


class Sandbox:
    """A directory with a store, in which commands run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory}/locks/locks.db"
        self.database = directory / "locks" / "locks.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
        self.env = {**kept, "DIBS_URL": self.url}
        self._started: list[subprocess.Popen[str]] = []

    def spoil(self) -> None:
        """Make something else of the database. Its log goes first: from Python 3.12 on it is kept, and has it all."""
        for rest in self.database.parent.glob("locks.db-*"):
            rest.unlink()
        self.database.write_bytes(b"this is not a database, and it is long enough to be looked at" * 100)

    def dibs(self, *args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [*DIBS, *args],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.directory,
            env={**self.env, **env},
            timeout=PATIENCE,
            check=False,
            preexec_fn=with_no_signal_ignored,
        )

    def start(self, *args: str, ignoring: tuple[signal.Signals, ...] = (), **options: Any) -> subprocess.Popen[str]:
        """Start it, with the signals *ignoring* ignored."""

        def prepare() -> None:
            with_no_signal_ignored()
            for signum in ignoring:
                signal.signal(signum, signal.SIG_IGN)

        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*DIBS, *args],
            text=True,
            cwd=self.directory,
            env=self.env,
            preexec_fn=prepare,  # noqa: PLW1509 - no threads here
            **{**streams, **options},
        )
        self._started.append(process)
        return process

    def json(self, *args: str) -> Any:
        """Run it and read the JSON it prints."""
        done = self.dibs(*args, "--json")
        return json.loads(done.stdout)

    def holder(self, name: str) -> Any:
        return self.json("show", name)["holder"]

    def waiting(self, name: str) -> Any:
        return self.json("show", name)["waiting"]

    def fence(self, name: str) -> str:
        return str(self.holder(name)["fence"])

    def file(self, name: str) -> Path:
        return self.directory / name

    def written(self, name: str) -> str:
        """Wait until a command has written a whole line into a file, and return it."""

        def look() -> str:
            path = self.file(name)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            return text.strip() if text.endswith("\n") else ""

        return until(look, f"a line in {name}")

    def pid(self, name: str) -> int:
        """Wait until a process has written its id into a file."""
        return int(self.written(name))

    def clean_up(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end of a process: exit code, stdout, stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out or "", err or ""
