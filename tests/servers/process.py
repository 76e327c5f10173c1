"""A server's process: it ends with the test run, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE = 20.0
"""Seconds for a server to answer, on a busy machine."""

GUARD = 'read -r _ || kill -s KILL -- "-$1"'
"""Ends the process group $1 unless it is told a line: when this interpreter is gone, even by kill -9, its pipe ends."""


class Process:
    """A running program and those it started, as one process group."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._command, self._log = command, log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                process_group=0,
            )
        self.pid = self._process.pid
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", str(self.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # else it keeps a pipe open that somebody reads the test results from
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    @property
    def runs(self) -> bool:
        """Whether it has not ended; stopped counts as running."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all of it."""
        os.killpg(self.pid, number)

    def stop(self) -> None:
        """Let it stand still: SIGSTOP, and wait until all threads have. Some may answer for a while yet."""
        self.signal(signal.SIGSTOP)
        until(lambda: not self.runs or {"T"} >= set(self._states()), "it stands still")

    def cont(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it now; it cannot object. Once ended, this does nothing."""
        if self.runs:
            self.signal(signal.SIGKILL)
        self.ended()

    def _states(self) -> Iterator[str]:
        """Of each of its threads, as the kernel abbreviates it."""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with suppress(OSError):  # it has ended
                yield stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0]

    def ended(self) -> None:
        """Wait for its end."""
        self._process.wait(PATIENCE)
        if self._guard.poll() is None:
            self._guard.communicate(b"\n")

    def until(self, ready: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until *ready*, which may raise `OSError` so far; fail if it ends, or after a long time."""
        last: object = None
        end = time.monotonic() + patience
        while self.runs and time.monotonic() < end:
            try:
                if ready():
                    return
            except OSError as exc:
                last = exc
            time.sleep(0.003)
        state = "is not ready" if self.runs else "has ended"
        self.kill()
        log = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise RuntimeError(f"{' '.join(self._command)} {state} ({last}):\n{log}")


def until(truth: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait until *truth*, told by real servers; fail with *what* did not happen."""
    end = time.monotonic() + patience
    while not truth():
        assert time.monotonic() < end, f"not within {patience:g} s: {what}"
        time.sleep(0.01)
