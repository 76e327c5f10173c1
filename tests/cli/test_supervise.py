"""What happens to a command when its lease or its time is over."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time

import pytest

from .processes import Sandbox, alive, finished, until

POLITE = "trap 'echo TERM >> heard; exit 0' TERM; echo $$ > pid; while :; do sleep 0.02; done"
STUBBORN = "trap 'echo TERM >> heard' TERM; echo $$ > pid; while :; do sleep 0.02; done"
FAMILY = "trap '' TERM; (trap '' TERM; while :; do sleep 0.02; done) & echo $! > grandchild; echo $$ > pid; wait; wait"

LEAVES_A_CHILD = """
sh -c 'trap "" TERM; echo $$ > grandchild; while :; do sleep 0.05; done' > /dev/null 2>&1 < /dev/null &
while [ ! -s grandchild ]; do sleep 0.02; done
trap "exit 0" TERM
echo $$ > ready
while :; do sleep 0.05; done
"""


def break_it(box: Sandbox, name: str = "x") -> None:
    assert box.dibs("evict", name, "--fence", box.fence(name), "--reason", "a test").returncode == 0


def test_a_broken_lock_ends_the_command_with_76(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "1.5", "--", "sh", "-c", POLITE)
    box.pid("pid")
    break_it(box)
    code, _, err = finished(process)
    assert code == 76
    assert "dibs: the lease on 'x' was lost (evicted): asking the command to end\n" in err
    assert box.file("heard").read_text(encoding="utf-8") == "TERM\n"


def test_a_command_that_does_not_end_is_killed_after_the_grace(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "1.5", "--grace", "0.3", "--", "sh", "-c", STUBBORN)
    pid = box.pid("pid")
    break_it(box)
    code, _, err = finished(process)
    assert code == 76
    assert "killing the command" in err
    assert box.file("heard").read_text(encoding="utf-8") == "TERM\n"
    assert not alive(pid)


def test_a_loss_kills_the_children_of_the_command_too(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "1.5", "--grace", "0.3", "--", "sh", "-c", FAMILY)
    pids = box.pid("pid"), box.pid("grandchild")
    break_it(box)
    assert finished(process)[0] == 76
    until(lambda: not any(map(alive, pids)))


def test_kill_does_not_ask_first(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "1.5", "--on-lost", "kill", "--", "sh", "-c", POLITE)
    box.pid("pid")
    break_it(box)
    code, _, err = finished(process)
    assert (code, err) == (76, "dibs: the lease on 'x' was lost (evicted): killing the command\n")
    assert not box.file("heard").exists()


def test_continue_lets_the_command_finish_and_passes_its_code_on(box: Sandbox) -> None:
    wait = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; exit 9"
    with box.file("err").open("w", encoding="utf-8") as err:
        process = box.start("run", "x", "--ttl", "1.5", "--on-lost", "continue", "--", "sh", "-c", wait, stderr=err)
        box.pid("pid")
        break_it(box)
        line = box.written("err")
    assert line == "dibs: the lease on 'x' was lost (evicted): the command goes on"
    box.file("go").touch()
    assert finished(process)[0] == 9
    assert box.file("err").read_text(encoding="utf-8") == line + "\n"


def test_a_loss_that_is_only_found_at_the_end_counts_as_one(box: Sandbox) -> None:
    process = box.start("run", "x", "--", "sh", "-c", "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done; exit 9")
    box.pid("pid")
    break_it(box)
    box.file("go").touch()
    code, _, err = finished(process)
    assert code == 76
    assert err.endswith("(the command had ended with 9)\n")


def test_a_wrapper_that_stood_still_past_the_ttl_kills_its_command(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "0.8", "--", "sh", "-c", STUBBORN)
    pid = box.pid("pid")
    process.send_signal(signal.SIGSTOP)
    assert box.dibs("run", "-w", "15", "x", "--", "true").returncode == 0
    assert alive(pid)  # only a guard that checks the fence protects from it meanwhile
    process.send_signal(signal.SIGCONT)
    code, _, err = finished(process)
    assert code == 76
    assert "was lost" in err
    assert "killing the command" in err
    assert not alive(pid)
    assert not box.file("heard").exists()


def test_json_tells_of_a_loss(box: Sandbox) -> None:
    process = box.start("run", "--json", "x", "--ttl", "1.5", "--", "sh", "-c", POLITE)
    box.pid("pid")
    break_it(box)
    facts = json.loads(finished(process)[2].splitlines()[-1])
    assert (facts["why"], facts["lost"], facts["exit"], facts["command"]) == ("lost", "evicted", 76, {"exit": 0})


@pytest.mark.parametrize("script", [POLITE, STUBBORN])
def test_without_a_store_the_command_ends_before_its_lease_does(box: Sandbox, script: str) -> None:
    process = box.start("run", "x", "--ttl", "3", "--grace", "0.6", "--", "sh", "-c", script)
    pid = box.pid("pid")
    blocker = sqlite3.connect(box.database, isolation_level=None, timeout=10)
    blocker.execute("begin exclusive")
    ends_at = time.monotonic() + 3  # no lease that was asked for before the store was blocked lasts longer
    until(lambda: not alive(pid))
    assert time.monotonic() < ends_at
    blocker.rollback()
    blocker.close()
    code, _, err = finished(process)
    assert code == 76
    assert "dibs: the lease on 'x' cannot be renewed and ends in 0." in err
    assert box.file("heard").read_text(encoding="utf-8") == "TERM\n"


def test_a_store_that_comes_back_in_time_is_not_even_noticed(box: Sandbox) -> None:
    wait = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done"
    process = box.start("run", "x", "--ttl", "3", "--grace", "0.3", "--", "sh", "-c", wait)
    box.pid("pid")
    blocker = sqlite3.connect(box.database, isolation_level=None, timeout=10)
    blocker.execute("begin exclusive")
    time.sleep(1.3)  # longer than a third of the ttl: a renewal has failed
    blocker.rollback()
    blocker.close()
    box.file("go").touch()
    assert finished(process) == (0, "", "")


def test_max_hold_ends_the_command_with_124(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--max-hold", "2", "--", "sh", "-c", POLITE)
    assert done.returncode == 124
    # Not at the beginning: its shell may have said "Terminated" first.
    assert "dibs: the command has held 'x' for --max-hold: asking the command to end\n" in done.stderr
    assert box.file("heard").read_text(encoding="utf-8") == "TERM\n"
    assert box.holder("x") is None


def test_max_hold_kills_a_command_that_does_not_end(box: Sandbox) -> None:
    done = box.dibs("run", "x", "--max-hold", "2", "--grace", "0.3", "--", "sh", "-c", FAMILY)
    assert done.returncode == 124
    pids = box.pid("pid"), box.pid("grandchild")
    until(lambda: not any(map(alive, pids)))


def test_the_lock_is_kept_until_the_command_is_gone_after_max_hold(box: Sandbox) -> None:
    args = ["run", "x", "--ttl", "6", "--grace", "3", "--max-hold", "2", "--"]
    process = box.start(*args, "sh", "-c", STUBBORN)
    until(lambda: box.file("heard").exists())
    assert box.dibs("run", "-n", "x", "--", "true").returncode == 75
    assert finished(process)[0] == 124


def test_a_stopped_command_is_continued_to_hear_that_it_must_end(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "1.5", "--", "sh", "-c", "kill -STOP $$; exit 3", start_new_session=True)
    until(lambda: box.holder("x"))
    break_it(box)
    assert finished(process)[0] == 76


def test_a_command_that_somebody_stopped_keeps_the_lock(box: Sandbox) -> None:
    wait = "trap 'exit 6' TERM; echo $$ > pid; while :; do sleep 0.02; done"
    process = box.start("run", "x", "--ttl", "0.8", "--", "sh", "-c", wait, start_new_session=True)
    pid = box.pid("pid")
    os.kill(pid, signal.SIGSTOP)
    assert box.dibs("run", "-w", "1.5", "x", "--", "true").returncode == 75
    os.kill(pid, signal.SIGCONT)
    process.terminate()
    assert finished(process)[0] == 6


def test_a_child_that_ignores_term_does_not_outlive_a_command_that_ended_in_time(box: Sandbox) -> None:
    process = box.start("run", "x", "--ttl", "1.5", "--", "sh", "-c", LEAVES_A_CHILD)
    box.pid("ready")
    grandchild = box.pid("grandchild")
    break_it(box)
    assert finished(process)[0] == 76
    until(lambda: not alive(grandchild))
