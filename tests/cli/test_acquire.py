"""`dibs acquire` leaves a lock held, and says in text what the other verbs need for it."""

from __future__ import annotations

import json
import subprocess
import sys

from .processes import Sandbox, finished, until


def test_it_prints_one_word_and_leaves_the_lock_held(box: Sandbox) -> None:
    done = box.dibs("acquire", "the name", "--note", "mine", "--ttl", "60")
    assert (done.returncode, done.stderr) == (0, "")
    [word] = done.stdout.split()
    assert word.startswith("dibs1:")
    holder = box.holder("the name")
    assert holder["note"] == "mine"
    assert 50 < holder["expires_in"] <= 60


def test_it_is_held_for_its_ttl_only(box: Sandbox) -> None:
    token = box.dibs("acquire", "x", "--ttl", "0.5").stdout
    assert box.dibs("run", "-w", "10", "x", "--", "true").returncode == 0
    assert box.dibs("check", token).returncode == 76


def test_a_refusal_says_who_holds_it(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    done = box.dibs("acquire", "-n", "x")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("dibs: lock 'x' was not acquired")
    assert "note 'mine'" in done.stderr


def test_json_says_the_same(box: Sandbox) -> None:
    facts = box.json("acquire", "x", "--ttl", "60")
    assert (facts["acquired"], facts["name"], facts["ttl"]) == (True, "x", 60)
    assert box.dibs("check", facts["token"]).returncode == 0
    refused = box.dibs("acquire", "-n", "x", "--json")
    facts = json.loads(refused.stdout)
    assert (refused.returncode, facts["acquired"], facts["holder"]["name"]) == (75, False, "x")


def test_it_waits_for_its_turn(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    second = box.start("acquire", "-w", "30", "x")
    until(lambda: box.waiting("x"))
    box.dibs("release", token)
    code, text, _ = finished(second)
    assert code == 0
    assert box.dibs("check", text).returncode == 0


def test_a_lease_whose_text_nobody_got_is_given_back(box: Sandbox) -> None:
    command = f'trap "" PIPE; "{sys.executable}" -m dibs acquire x > /dev/full'
    done = subprocess.run(["sh", "-c", command], env=box.env, capture_output=True, text=True, check=False)
    assert done.returncode == 74
    assert "dibs: cannot write" in done.stderr
    assert box.holder("x") is None


def test_the_steps_of_a_script(box: Sandbox) -> None:
    dibs = f'"{sys.executable}" -m dibs'
    script = f"""
        DIBS_TOKEN=$({dibs} acquire deploy --ttl 60) || exit; export DIBS_TOKEN
        {dibs} check && {dibs} renew && {dibs} release && ! {dibs} check
    """
    done = subprocess.run(["sh", "-c", script], env=box.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert box.holder("deploy") is None


def test_a_part_of_a_name_leaves_room_for_others(box: Sandbox) -> None:
    tokens = [box.dibs("acquire", "-n", "x", "--slots", "2").stdout for _ in range(2)]
    assert box.dibs("acquire", "-n", "x", "--slots", "2").returncode == 75
    assert box.dibs("acquire", "-n", "x").returncode == 75
    assert box.dibs("check", tokens[0]).returncode == 0
    assert box.dibs("renew", tokens[0]).returncode == 0
    assert box.dibs("release", tokens[0]).returncode == 0
    assert box.dibs("run", "-n", "--slots", "2", "x", "--", "true").returncode == 0


def test_another_number_of_slots_is_wrong_usage(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--slots", "2")
    done = box.dibs("acquire", "-n", "x", "--slots", "3")
    assert done.returncode == 64
    assert "is held as a semaphore of 2 slots" in done.stderr


def test_options_of_parts_that_contradict_each_other_are_refused(box: Sandbox) -> None:
    for options in (
        ("--shared", "--slots", "2"),
        ("--weight", "2"),
        ("--slots", "0"),
        ("--slots", "2", "--weight", "3"),
    ):
        done = box.dibs("acquire", "-n", "x", *options)
        assert (done.returncode, done.stdout) == (64, ""), done.stderr
