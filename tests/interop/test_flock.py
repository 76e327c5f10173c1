"""flock beside us, while a crontab changes from one to the other: the recipe of docs/migrating.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers.process import until
from servers.programs import program

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command that leaves a file when it runs and goes on until another is there."""
    flock = program("flock").path
    lines = {
        "old": [flock, "-n", "-E", "75", "job.lock"],
        "new": [sys.executable, "-m", "dibs", "run", "--no-wait", "job", "--", flock, "-n", "-E", "75", "job.lock"],
    }
    running: list[subprocess.Popen[bytes]] = []

    def start_it(line: str, name: str) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", f"touch {name}.began; while [ ! -e {name}.end ]; do sleep 0.02; done"]
        env = {**os.environ, "DIBS_URL": f"sqlite:///{tmp_path}/locks.db"}
        running.append(subprocess.Popen([*lines[line], *command], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL))
        return running[-1]

    yield start_it
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old"), ("new", "new")])
def test_the_line_of_before_and_that_of_now_keep_each_other_out(
    start: Start, tmp_path: Path, first: str, second: str
) -> None:
    runs = start(first, "first")
    until((tmp_path / "first.began").exists, "the first runs")
    refused = start(second, "second")
    assert refused.wait(timeout=20) == 75
    assert not (tmp_path / "second.began").exists()
    (tmp_path / "first.end").touch()
    assert runs.wait(timeout=20) == 0
    (tmp_path / "third.end").touch()
    assert start(second, "third").wait(timeout=20) == 0
    assert (tmp_path / "third.began").exists()
