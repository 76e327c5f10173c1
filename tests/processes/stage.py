"""Starts the processes of a test, talks to them in lines, stops and continues them, and cleans up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

PATIENCE = 20.0
"""Seconds until a test gives up waiting for something that should come at once."""


def until(look: Callable[[], object], what: str) -> None:
    """Look again and again until *look* finds something."""
    deadline = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.002)


class Actor:
    """A Python process that runs one of our modules, with every warning an error."""

    def __init__(self, module: str, *args: object, **env: str) -> None:
        tests = Path(__file__).parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", f"processes.{module}", *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tests), **env},
        )
        self.pid = self._process.pid

    @property
    def mouth(self) -> IO[str]:
        """What can be read when it has something to say."""
        return _open(self._process.stdout)

    def ask(self, *words: object) -> Any:
        """Let it do something; its answer."""
        self.tell(*words)
        return self.hear()

    def tell(self, *words: object) -> None:
        """Let it do something, and go on here."""
        print(*words, file=_open(self._process.stdin), flush=True)

    def hear(self) -> Any:
        """Wait for its answer."""
        line = _open(self._process.stdout).readline()
        assert line, _open(self._process.stderr).read()
        return json.loads(line)

    def stop(self) -> None:
        """SIGSTOP, and wait until it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        until(lambda: self.state() == "T", "SIGSTOP")

    def go_on(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.communicate()

    def state(self) -> str:
        """The letter that the kernel has for it: R, S, T (stopped) …"""
        told = subprocess.run(["ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, text=True, check=False)
        return told.stdout[:1]

    def end(self) -> None:
        """Close its stdin, which ends it; it has nothing to complain about."""
        _, complaints = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode, complaints) == (0, "")

    def last_words(self) -> list[Any]:
        """Close its stdin, which ends it; what it says before."""
        said, complaints = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode, complaints) == (0, "")
        return [json.loads(line) for line in said.splitlines()]

    def died(self) -> tuple[int, str]:
        """Wait until it has ended by itself; its exit code and what it complained of."""
        code = self._process.wait(timeout=PATIENCE)
        return code, self._process.communicate()[1]

    def clean_up(self) -> None:
        """Whatever happened, nothing of it stays."""
        if self._process.poll() is None:
            self.kill()


class Stage:
    """A folder, a store in it, and those who act on it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite://{folder}/locks/locks.db"
        self._everyone: list[Actor] = []

    def enter(self, module: str, *args: object) -> Actor:
        """One more process."""
        actor = Actor(module, self.url, self.folder, *args)
        self._everyone.append(actor)
        return actor

    def clean_up(self) -> None:
        for actor in self._everyone:
            actor.clean_up()


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
