"""What a run of the tests leaves out: half of the contract in the real runtimes, and never the same half twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent

CONTRACT = "tests/contract/test_stores.py::TestMemory"


def runtimes(*options: str, base: int = 0) -> dict[str, set[str]]:
    """For each test of the contract of a store: the runtimes that a run takes it in."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:randomly", *options, CONTRACT]
    environment = {**os.environ, "DIBS_SIM_BASE": str(base)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found = defaultdict(set)
    for line in done.stdout.splitlines():
        if line.startswith(CONTRACT):
            test, _, rest = line.partition("[")
            found[test].update({"threads", "asyncio", "simulated"} & set(rest.rstrip("]").split("-")))
    return found


def test_two_runs_in_a_row_take_every_test_in_every_runtime() -> None:
    everything, even, odd = runtimes("--all-runtimes"), runtimes(base=0), runtimes(base=1)
    assert {test: even[test] | odd[test] for test in everything} == everything
    assert sum(map(len, even.values())) < 0.9 * sum(map(len, everything.values()))


def test_a_quick_run_takes_each_test_in_one_real_runtime() -> None:
    every = runtimes("--one-runtime")
    assert all(found & {"threads", "asyncio"} for found in every.values())
    assert sum(len(found) == 3 for found in every.values()) == 0
