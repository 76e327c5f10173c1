"""A run of the tests tells how often the contract had to measure again, and fails in CI if that was too often."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tries

SLOW = """
from dibs.testing.contract import world


def test_it_took_too_long_a_few_times() -> None:
    world.tries.too_many += {more}
"""


@pytest.mark.parametrize(
    ("more", "ci", "status", "workers"),
    [(3, "true", 0, "2"), (tries.MOST + 1, "true", 1, "2"), (tries.MOST + 1, "true", 1, "0"), (10**6, "", 0, "0")],
)
def test_too_many_tries_fail_in_ci(tmp_path: Path, more: int, ci: str, status: int, workers: str) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW.format(more=more))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**plain, "PYTHONPATH": str(Path(__file__).parent), "CI": ci}
    command = [sys.executable, "-m", "pytest", "-p", "tries", "-p", "no:cacheprovider", "-n", workers, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert f"{more} measurements of the contract were taken again" in done.stdout
    assert done.returncode == status, done.stdout
