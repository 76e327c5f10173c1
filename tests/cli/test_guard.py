"""Nobody stays behind: when `dibs run` is killed, the whole group of its command is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.cli.guard import GuardProcess

from .processes import Sandbox, alive, finished, until


def guards() -> set[int]:
    """The guards that run now."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"dibs-guard" in (entry / "cmdline").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def children(pid: int) -> set[int]:
    try:
        return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()}
    except OSError:
        return set()


FAMILY = "sleep 60 & echo $! > grandchild; (sleep 60 & echo $! > great; wait) & echo $$ > child; wait"


def test_a_killed_wrapper_takes_the_whole_group_with_it(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", FAMILY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = [box.pid(name) for name in ("child", "grandchild", "great")]
    process.kill()
    until(lambda: not any(map(alive, pids)), "the end of the family")


def test_the_lock_of_a_killed_wrapper_is_free_only_when_its_command_is_gone(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", FAMILY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pids = [box.pid(name) for name in ("child", "grandchild", "great")]
    look = "import sys; from tests_alive import alive; print([p for p in map(int, sys.argv[1:]) if alive(p)])"
    box.file("tests_alive.py").write_text(
        "import pathlib\ndef alive(pid):\n    try: s = pathlib.Path(f'/proc/{pid}/stat').read_text()\n"
        "    except OSError: return False\n    return s.rpartition(')')[2].split()[0] not in 'ZX'\n",
        encoding="utf-8",
    )
    next_in_line = box.start("run", "-w", "20", "x", "--", sys.executable, "-c", look, *map(str, pids))
    until(lambda: box.waiting("x"))
    process.kill()
    assert finished(next_in_line)[:2] == (0, "[]\n")


def test_no_guard_is_left_when_the_command_has_ended(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "echo > ready; while [ ! -e go ]; do sleep 0.02; done")
    until(lambda: box.file("ready").exists())
    [guard] = guards() & children(process.pid)
    box.file("go").touch()
    assert finished(process) == (0, "", "")
    assert not alive(guard)


def test_the_guard_hears_no_signal_and_holds_no_stream(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    box.pid("pid")
    [guard] = guards() & children(process.pid)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        os.kill(guard, signum)
    streams = {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (1, 2)}
    held = {os.readlink(path) for path in Path(f"/proc/{guard}/fd").iterdir()}
    assert not streams & held
    assert os.readlink(f"/proc/{guard}/cwd") == "/"
    assert os.getsid(guard) == guard
    assert alive(guard)
    process.terminate()
    assert finished(process)[0] == 128 + signal.SIGTERM
    assert not alive(guard)


def test_a_killed_guard_does_not_disturb_the_run(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "echo > ready; while [ ! -e go ]; do sleep 0.02; done; exit 3")
    until(lambda: box.file("ready").exists())
    [guard] = guards() & children(process.pid)
    os.kill(guard, signal.SIGKILL)
    box.file("go").touch()
    assert finished(process) == (3, "", "")


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is of Linux")
def test_the_command_itself_dies_with_us_even_without_a_guard(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    pid = box.pid("pid")
    [guard] = guards() & children(process.pid)
    os.kill(guard, signal.SIGKILL)
    process.kill()
    until(lambda: not alive(pid))


def test_what_a_command_leaves_in_the_background_goes_on_without_the_lock(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--", "sh", "-c", "sleep 60 > /dev/null 2>&1 < /dev/null & echo $!")
    pid = int(done.stdout)
    assert done.returncode == 0
    assert alive(pid)
    assert box.dibs("run", "-n", "x", "--", "true").returncode == 0
    os.kill(pid, signal.SIGKILL)


def test_a_guard_that_was_told_no_group_kills_nobody() -> None:
    guard = GuardProcess(())
    guard.dismiss()
    assert guard._process.returncode == 0
