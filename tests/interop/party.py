"""One process of another library, and what a test lets it do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from interop.node import packages
from servers.programs import program

PATIENCE = 30.0
"""Seconds for its end."""

KINDS = ["redis-py", "script", "redlock4", "redlock5"]


def command(kind: str, port: int, key: str) -> Sequence[str]:
    """How it is started."""
    where = [kind, str(port), key]
    if kind in {"redis-py", "script"}:
        return [sys.executable, "-W", "error", "-m", "interop.rival", *where]
    return [program("node").path, str(Path(__file__).with_name("rival.cjs")), str(packages()), *where]


class Party:
    """Its steps return what it says."""

    def __init__(self, kind: str, port: int, key: str) -> None:
        tests = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            command(kind, port, key),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tests)},
        )
        assert self._hear() is True

    def take(self, seconds: float = 30.0) -> bool:
        """Try once; whether it has the lock."""
        return bool(self._ask("take", round(seconds * 1000)))

    def extend(self, seconds: float) -> bool:
        """Prolong it; whether it could."""
        return bool(self._ask("extend", round(seconds * 1000)))

    def free(self) -> bool:
        """Give it back; whether it was still its own."""
        return bool(self._ask("free"))

    def begin_to_count(self, path: Path, rounds: int) -> None:
        """Add to the number in a file under the lock; `counted` waits for the end."""
        self._tell("count", path, rounds)

    def counted(self) -> int:
        """How often it did."""
        return int(self._hear())

    def end(self) -> None:
        """It leaves in good order, and has nothing to complain about."""
        _, complaints = self._process.communicate(timeout=PATIENCE)
        assert (self._process.returncode, complaints) == (0, "")

    def clean_up(self) -> None:
        """Whatever happened, nothing of it stays."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            _open(stream).close()

    def _ask(self, *words: object) -> Any:
        self._tell(*words)
        return self._hear()

    def _tell(self, *words: object) -> None:
        print(*words, file=_open(self._process.stdin), flush=True)

    def _hear(self) -> Any:
        line = _open(self._process.stdout).readline()
        assert line, _open(self._process.stderr).read()
        return json.loads(line)


def _open(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
