"""Six processes want one lock of five real servers, each out of reach now and then, and are stopped at any moment.

``DIBS_REDLOCK_GRANTS=10000`` counts that many grants.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import dibs
from dibs.testing.history import Hold, Violation, fences_out_of_order
from servers.redis import RedisServer

GRANTS = int(os.environ.get("DIBS_REDLOCK_GRANTS", "800"))
CONTENDER = Path(__file__).with_name("contender.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(5)]
        url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        with dibs.connect(url) as client, client.lock("x"):
            pass
        yield url


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["confirmed", "counted"])
def test_no_fence_is_given_twice_and_none_falls(url: str, mode: str, tmp_path: Path) -> None:
    holds = contention(url, mode, tmp_path, GRANTS)
    print(f"{mode}: {len(holds)} grants")
    assert not fences_out_of_order(holds)


@pytest.mark.timeout(600)
def test_the_highest_fence_of_a_quorum_is_given_twice(url: str, tmp_path: Path) -> None:
    """The run finds what is wrong with a Redlock whose fences are not confirmed."""
    found: list[Violation] = []
    for attempt in range(10):
        holds = contention(url, "highest", tmp_path / str(attempt), 200)
        found = fences_out_of_order(holds)
        print(f"highest: {len(holds)} grants, {len(found)} violations")
        if found:
            return
    raise AssertionError("two thousand grants without a violation: the check is blind")


def contention(url: str, mode: str, folder: Path, grants: int) -> list[Hold]:
    folder.mkdir(exist_ok=True)
    logs = [folder / f"{mode} {number}" for number in range(6)]
    for log in logs:
        log.touch()
    with ExitStack() as stack:
        crowd = [stack.enter_context(contender(url, log, mode)) for log in logs]
        while sum(map(lines, logs)) < grants:
            process = random.choice(crowd)
            process.send_signal(signal.SIGSTOP)
            time.sleep(random.choice([0.01, 0.01, 0.02, 0.02, 0.05, 0.05, 0.1, 0.7]))  # the last is longer than the ttl
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            assert all(each.poll() is None for each in crowd), "a contender has ended"
    return [
        Hold(int(fence), float(asked), float(granted))
        for log in logs
        for asked, granted, fence in (line.split() for line in complete(log))
    ]


@contextmanager
def contender(url: str, log: Path, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    """One process, killed at the end of the block."""
    with subprocess.Popen([sys.executable, str(CONTENDER), url, str(log), mode]) as process:
        yield process
        process.kill()


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def complete(log: Path) -> list[str]:
    """All lines but one that was cut off by the end of its process."""
    return [line for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
