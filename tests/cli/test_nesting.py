"""Who already runs under a lock is told so, instead of waiting for itself."""

from __future__ import annotations

import json
import sys

import pytest

from .processes import Sandbox

DIBS = f"{sys.executable} -m dibs"


@pytest.mark.parametrize("inner", ["run nest -- true", "run -n --skip-ok nest -- true", "acquire nest"])
def test_a_command_that_asks_for_the_lock_it_runs_under_is_refused_at_once(box: Sandbox, inner: str) -> None:
    done = box.dibs("run", "nest", "-c", f"{DIBS} {inner}")
    assert done.returncode == 64
    assert done.stderr.startswith("dibs: this command already runs under 'nest'")
    assert done.stderr.count("\n") == 1
    assert box.holder("nest") is None


def test_json_says_the_same(box: Sandbox) -> None:
    facts = json.loads(box.dibs("run", "nest", "-c", f"{DIBS} run --json nest -- true").stderr)
    assert (facts["why"], facts["exit"], facts["acquired"]) == ("usage", 64, False)


@pytest.mark.parametrize("options", ["other", "--namespace other nest", "--url sqlite:other.db nest"])
def test_another_lock_can_be_taken_inside(box: Sandbox, options: str) -> None:
    done = box.dibs("run", "nest", "-c", f"{DIBS} run -n {options} -- true")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_daemon_that_outlived_the_lease_it_was_started_under_can_take_the_lock(box: Sandbox) -> None:
    env = box.dibs("run", "nest", "-c", "echo $DIBS_TOKEN")
    done = box.dibs("run", "-n", "nest", "--", "true", DIBS_NAME="nest", DIBS_TOKEN=env.stdout.strip())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("token", ["", "nonsense"])
def test_an_environment_that_says_nothing_is_no_obstacle(box: Sandbox, token: str) -> None:
    assert box.dibs("run", "nest", "--", "true", DIBS_NAME="nest", DIBS_TOKEN=token).returncode == 0
