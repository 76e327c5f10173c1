"""A test is run again only if an answer or a renewal was late, and the machine was seen to be busy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import busy
from dibs.errors import OutcomeUnknown

TWICE = """
import pathlib

import busy
from dibs.errors import OutcomeUnknown

TOTALS = iter([[0.0], [{waited}], [0.0], [0.0], [0.0], [0.0]])


def test_it_works_the_second_time() -> None:
    busy.waited = lambda: next(TOTALS)
    busy.watch.begin()
    mark = pathlib.Path("was here")
    if not mark.exists():
        mark.touch()
        raise {error}
"""

LATE = 'OutcomeUnknown("redis", "no answer in time")'


@pytest.mark.parametrize(
    ("waited", "error", "status"),
    [(9.9, LATE, 0), (0.0, LATE, 1), (9.9, 'AssertionError("two holders")', 1)],
    ids=["late on a busy machine", "late on an idle machine", "two holders"],
)
def test_only_what_was_late_is_run_again(tmp_path: Path, waited: float, error: str, status: int) -> None:
    (tmp_path / "test_twice.py").write_text(TWICE.format(waited=waited, error=error))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**plain, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "-p", "busy", "-p", "no:cacheprovider", "-n", "1", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout
    assert ("1 rerun" in done.stdout) is (status == 0), done.stdout


def test_a_machine_with_nothing_to_do_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "waited", lambda: [1.0, 2.0, 3.0])
    assert not busy.Watch().busy


def test_a_machine_that_waits_for_its_disk_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = iter([[1.0, 2.0, 3.0], [1.0, 9.0, 3.0]])
    monkeypatch.setattr(busy, "waited", lambda: next(totals))
    assert busy.Watch().busy


def test_an_assertion_about_a_late_answer_comes_from_it() -> None:
    with pytest.raises(AssertionError) as told, pytest.raises(OutcomeUnknown, match="moving"):
        raise OutcomeUnknown("redis", "no answer in time")
    assert busy.late(told.value)


def test_a_wrong_answer_is_not_late() -> None:
    assert not busy.late(AssertionError("two holders"))
    assert not busy.late(None)
