"""`dibs elect`: one candidate runs its command, the others stand by, and no two run it at once."""

from __future__ import annotations

import json
import signal

import pytest

from .processes import Sandbox, alive, finished, until

FOR_EVER = "echo $$ > {0}; while :; do sleep 0.02; done"


def test_it_exits_with_what_the_command_exits_with_and_gives_the_place_up(box: Sandbox) -> None:
    done = box.dibs("elect", "x", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert box.holder("x") is None


def test_show_says_who_leads(box: Sandbox) -> None:
    leader = box.start("elect", "x", "--candidate", "web-3", "-c", "echo $DIBS_FENCE > term; sleep 60")
    term = int(box.written("term"))
    assert box.json("show", "x")["leader"] == {"candidate": "web-3", "term": term}
    assert f"leader              web-3, term {term}\n" in box.dibs("show", "x").stdout
    leader.terminate()
    finished(leader)
    assert box.json("show", "x")["leader"] is None
    assert "leader" not in box.dibs("show", "x").stdout


def test_a_plain_lock_has_no_leader(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    assert box.json("show", "x")["leader"] is None


def test_a_killed_leader_is_replaced_and_its_command_is_dead_by_then(box: Sandbox) -> None:
    first = box.start("elect", "x", "-c", FOR_EVER.format("first"))
    pid = box.pid("first")
    second = box.start("elect", "x", "-c", FOR_EVER.format("second"))
    until(lambda: box.waiting("x"))
    first.kill()
    box.pid("second")
    assert not alive(pid)
    second.terminate()
    finished(second)


def test_with_restart_it_stands_again_when_the_command_has_ended(box: Sandbox) -> None:
    process = box.start("elect", "--restart", "--ttl", "2", "x", "-c", "echo $DIBS_FENCE >> terms; exit 3")
    until(lambda: box.file("terms").exists() and len(box.file("terms").read_text().splitlines()) >= 3)
    process.terminate()
    code, _, err = finished(process)
    assert code in {3, 128 + signal.SIGTERM}
    assert err == ""
    terms = [int(line) for line in box.file("terms").read_text(encoding="utf-8").splitlines()]
    assert terms == sorted(set(terms))


def test_with_restart_a_lost_term_is_told_and_stood_for_again(box: Sandbox) -> None:
    script = "echo $DIBS_FENCE >> terms; trap 'exit 0' TERM; while :; do sleep 0.02; done"
    process = box.start("elect", "--restart", "--ttl", "4", "--json", "x", "-c", script)
    fence = box.written("terms")
    box.dibs("evict", "x", "--fence", fence, "--reason", "test")
    until(lambda: len(box.file("terms").read_text().splitlines()) == 2)
    process.terminate()
    code, _, err = finished(process)
    assert code == 0
    first, second = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert (first["dibs"], first["why"], first["exit"], first["fence"]) == ("elect", "lost", 76, int(fence))
    assert (second["why"], second["exit"]) == ("exited", 0)


def test_without_restart_a_lost_term_is_the_end(box: Sandbox) -> None:
    process = box.start("elect", "--ttl", "3", "x", "-c", FOR_EVER.format("pid"))
    box.pid("pid")
    box.dibs("evict", "x", "--fence", box.fence("x"), "--reason", "test")
    code, _, err = finished(process)
    assert code == 76
    assert "was lost (evicted): asking the command to end" in err


def test_a_command_that_ignores_term_is_killed_after_the_grace(box: Sandbox) -> None:
    """Its place was given away, and it does not hear TERM: it is dead --grace later."""
    script = "trap '' TERM; " + FOR_EVER.format("first")
    first = box.start("elect", "--ttl", "3", "--grace", "0.2", "x", "-c", script)
    pid = box.pid("first")
    box.dibs("evict", "x", "--fence", box.fence("x"), "--reason", "test")
    assert finished(first)[0] == 76
    assert not alive(pid)


def test_a_signal_ends_the_wait(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    process = box.start("elect", "--restart", "x", "--", "touch", "it-ran")
    until(lambda: box.waiting("x"))
    process.terminate()
    assert finished(process)[0] == 128 + signal.SIGTERM
    assert box.waiting("x") == []
    assert not box.file("it-ran").exists()


@pytest.mark.parametrize(
    ("command", "code"), [(["no-such-program"], 127), (["sh", "-c", "kill -INT $$"], 130)], ids=["missing", "Ctrl-C"]
)
def test_restart_does_not_go_on_for_ever(box: Sandbox, command: list[str], code: int) -> None:
    assert box.dibs("elect", "--restart", "x", "--", *command).returncode == code


def test_with_restart_a_store_that_fails_is_tried_again(box: Sandbox) -> None:
    box.dibs("elect", "x", "--", "true")
    whole = box.database.read_bytes()
    box.spoil()
    assert box.dibs("elect", "x", "--", "true").returncode == 69
    with box.file("told").open("w", encoding="utf-8") as told:
        process = box.start("elect", "--restart", "--ttl", "2", "x", "-c", FOR_EVER.format("pid"), stderr=told)
    until(lambda: box.file("told").read_text(encoding="utf-8").count("dibs: ") >= 2)
    for rest in box.database.parent.glob("locks.db-*"):
        rest.unlink()
    box.database.write_bytes(whole)
    box.pid("pid")
    process.terminate()
    finished(process)


def test_what_stands_before_the_command_is_told(box: Sandbox) -> None:
    done = box.dibs("elect", "x", "true")
    assert done.returncode == 64
    assert "put -- before the command: dibs elect x -- true; see dibs elect --help" in done.stderr
