"""`dibs once`: a slot is run by one of all calls, the others are quiet, and what ran is remembered."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from .processes import Sandbox, alive, finished, until

FOR_EVER = "echo $$ > {0}; while :; do sleep 0.02; done"


def runs(box: Sandbox, name: str = "x") -> list[tuple[str, str]]:
    """Slot and outcome of all that is remembered."""
    return [(run["slot"], run["outcome"]) for run in box.json("show", name)["runs"]]


def test_a_slot_runs_once_and_then_there_is_nothing_to_do(box: Sandbox) -> None:
    call = ("once", "x", "--slot", "monday", "--", "sh", "-c", "echo $DIBS_SLOT $DIBS_ATTEMPT $DIBS_NAME")
    first, second = box.dibs(*call), box.dibs(*call)
    assert (first.returncode, first.stdout, first.stderr) == (0, "monday 1 x\n", "")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert box.dibs("once", "x", "--slot", "tuesday", "--", "true").returncode == 0
    assert runs(box) == [("monday", "ok"), ("tuesday", "ok")]


def test_it_says_why_there_is_nothing_to_do_if_asked(box: Sandbox) -> None:
    box.dibs("once", "x", "--slot", "monday", "--", "true")
    told = box.dibs("once", "-v", "x", "--slot", "monday", "--", "true")
    assert told.returncode == 0
    assert told.stderr.startswith("dibs: 'x' is skipped for slot monday, already ran: at 2")
    facts = json.loads(box.dibs("once", "--json", "x", "--slot", "monday", "--", "true").stderr)
    assert (facts["dibs"], facts["why"], facts["reason"], facts["exit"]) == ("once", "skipped", "already ran", 0)


def test_a_slot_that_is_being_run_is_skipped(box: Sandbox) -> None:
    holder = box.start("once", "x", "--slot", "a", "-c", FOR_EVER.format("pid"))
    box.pid("pid")
    facts = json.loads(box.dibs("once", "--json", "x", "--slot", "a", "--", "true").stderr)
    assert (facts["reason"], facts["exit"]) == ("running now", 0)
    assert f"pid {holder.pid}" in facts["detail"]
    holder.terminate()
    assert finished(holder)[0] == 128 + signal.SIGTERM
    assert runs(box) == [("a", "failed")]


@pytest.mark.parametrize("line", [["--cron", "* * * * *"], ["--every", "1m"]])
def test_the_slots_of_a_schedule(box: Sandbox, line: list[str]) -> None:
    """The minute may change between two of the calls, and not between all of them."""
    said = [box.dibs("once", "x", *line, "-c", "echo $DIBS_SLOT").stdout for _ in range(3)]
    ran = [slot for slot in said if slot]
    assert 1 <= len(ran) <= 2
    assert len(set(ran)) == len(ran)
    assert ran[0].endswith(":00Z\n")


def test_the_code_of_the_command_is_passed_on_and_remembered(box: Sandbox) -> None:
    call = ("once", "x", "--slot", "a", "--retries", "1", "-c", "exit 3")
    assert [box.dibs(*call).returncode for _ in range(3)] == [3, 3, 0]
    [first, second] = box.json("show", "x")["runs"]
    assert (first["outcome"], first["detail"], second["attempt"]) == ("failed", "CommandFailed: it exited with 3", 2)
    page = box.dibs("show", "x").stdout
    assert page.count("\nrun                 a failed after ") == 2
    assert "attempt 2: CommandFailed: it exited with 3\n" in page


def test_a_killed_run_is_taken_over_by_one_that_stands_by(box: Sandbox) -> None:
    first = box.start("once", "x", "--slot", "a", "-c", FOR_EVER.format("first"))
    pid = box.pid("first")
    call = ("once", "x", "--slot", "a", "--stand-by", "--retries", "1", "-c", "echo $DIBS_ATTEMPT > second")
    second = box.start(*call)
    until(lambda: box.waiting("x"))
    first.kill()
    assert finished(second)[0] == 0
    assert box.written("second") == "2"
    assert not alive(pid)
    assert runs(box) == [("a", "crashed"), ("a", "ok")]


def test_a_command_that_is_not_there_is_a_failure(box: Sandbox) -> None:
    done = box.dibs("once", "x", "--slot", "a", "--", "no-such-program")
    assert done.returncode == 127
    assert runs(box) == [("a", "failed")]


def test_a_run_that_lost_its_lease_is_no_good_run(box: Sandbox) -> None:
    process = box.start("once", "x", "--slot", "a", "--ttl", "3", "-c", FOR_EVER.format("pid"))
    box.pid("pid")
    box.dibs("evict", "x", "--fence", box.fence("x"), "--reason", "test")
    assert finished(process)[0] == 76
    assert runs(box) == [("a", "running")]
    assert box.dibs("once", "x", "--slot", "a", "--", "touch", "it-ran").returncode == 0
    assert runs(box) == [("a", "crashed")]
    assert not box.file("it-ran").exists()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "exactly one of --slot"),
        (["--slot", "a", "--every", "3s"], "exactly one of"),
        (["--cron", "nonsense"], "is no cron line"),
        (["--cron", "0 3 * * *", "--tz", "Mars"], "no such time zone"),
        (["--slot", "a", "--retries", "x"], "is not a whole number"),
        (["--slot", "a", "--every", "0"], "more than 0"),
    ],
)
def test_what_cannot_be_right_is_refused(box: Sandbox, options: list[str], complaint: str) -> None:
    done = box.dibs("once", "x", *options, "--", "true")
    assert done.returncode == 64
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_call_that_would_wait_for_itself_is_refused(box: Sandbox) -> None:
    inner = f"{sys.executable} -m dibs once x --slot b --stand-by -- true"
    done = box.dibs("once", "x", "--slot", "a", "-c", inner)
    assert done.returncode == 64
    assert "would wait for itself" in done.stderr
