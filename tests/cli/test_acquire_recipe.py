"""The recipe of docs/shell.md, as it stands there, in the shells that people have."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .processes import Sandbox, finished, until, with_no_signal_ignored

PAGE = Path(__file__).parent.parent.parent / "docs" / "shell.md"
RECIPE = re.search(r"<!-- tested: .+? -->\n```sh\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.S)

pytestmark = pytest.mark.parametrize("shell", [each for each in ("dash", "bash") if shutil.which(each)])


def script(box: Sandbox, shell: str, build: str) -> subprocess.Popen[str]:
    """Start the recipe with *build* as its first step."""
    assert RECIPE
    programs = {
        "bin/dibs": f'exec "{sys.executable}" -m dibs "$@"',
        "build": build,
        "upload": "echo uploaded; dibs check >/dev/null",
        "deploy": RECIPE[1],
    }
    for name, text in programs.items():
        box.file(name).parent.mkdir(exist_ok=True)
        box.file(name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        box.file(name).chmod(0o755)
    return subprocess.Popen(
        [shell, "./deploy"],
        cwd=box.directory,
        env={**box.env, "PATH": f"{box.directory}/bin:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_no_signal_ignored,  # noqa: PLW1509 - no threads here
    )


def test_the_steps_run_under_the_lock_and_it_is_free_afterwards(box: Sandbox, shell: str) -> None:
    assert finished(script(box, shell, "dibs check >/dev/null && echo built")) == (0, "built\nuploaded\n", "")
    assert box.holder("deploy") is None


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_script_and_frees_the_lock(box: Sandbox, shell: str, signum: int) -> None:
    process = script(box, shell, "echo > ready; while [ ! -e go ]; do sleep 0.02; done")
    until(lambda: box.file("ready").exists())
    assert box.holder("deploy")
    process.send_signal(signum)
    box.file("go").touch()
    assert finished(process) == (128 + signum, "", "")
    assert box.holder("deploy") is None


def test_a_step_that_fails_ends_the_script_with_its_code_and_frees_the_lock(box: Sandbox, shell: str) -> None:
    assert finished(script(box, shell, "exit 3")) == (3, "", "")
    assert box.holder("deploy") is None


def test_the_script_does_not_go_on_when_the_lease_was_lost(box: Sandbox, shell: str) -> None:
    fence = """$(dibs ls --json | sed 's/.*"fence": \\([0-9]*\\).*/\\1/')"""
    code, out, err = finished(script(box, shell, f"dibs evict deploy --fence {fence} --reason 'a test' >/dev/null"))
    assert (code, out) == (76, "")
    assert "is over (given back, expired or broken); the lock is held by nobody" in err


def test_a_signal_that_comes_during_the_wait_for_the_lock_leaves_nothing_taken(box: Sandbox, shell: str) -> None:
    token = box.dibs("acquire", "deploy").stdout
    process = script(box, shell, "echo built")
    until(lambda: box.waiting("deploy"))
    process.send_signal(signal.SIGTERM)  # to the shell alone: dibs acquire goes on, and gets the lock
    box.dibs("release", token)
    assert finished(process) == (143, "", "")
    assert box.holder("deploy") is None
