"""`dibs evict` takes a lock from one grant, and only from that one."""

from __future__ import annotations

import json

from .processes import Sandbox


def test_it_takes_the_lock_away(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    fence = box.fence("x")
    done = box.dibs("evict", "x", "--fence", fence, "--reason", "a test")
    assert (done.returncode, done.stdout) == (0, f"x was taken from fence {fence}\n")
    assert box.holder("x") is None
    assert box.dibs("check", token).returncode == 76


def test_another_grant_is_left_alone(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    fence = box.fence("x")
    done = box.dibs("evict", "x", "--fence", str(int(fence) - 1), "--reason", "a test")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("dibs: nothing was evicted: 'x' is held by ")
    assert box.fence("x") == fence


def test_a_lock_that_nobody_holds_cannot_be_evicted(box: Sandbox) -> None:
    done = box.dibs("evict", "x", "--fence", "1", "--reason", "a test")
    assert done.returncode == 75
    assert "held by nobody" in done.stderr


def test_json_says_the_same(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    fence = int(box.fence("x"))
    wrong = box.dibs("evict", "x", "--fence", "1", "--reason", "a test", "--json")
    facts = json.loads(wrong.stdout)
    assert (wrong.returncode, facts["broken"], facts["holder"]["note"]) == (75, False, "mine")
    right = box.dibs("evict", "x", "--fence", str(fence), "--reason", "a test", "--json")
    assert json.loads(right.stdout) == {"broken": True, "name": "x", "fence": fence}


def test_break_is_another_name_for_it(box: Sandbox) -> None:
    """Scripts that say `dibs break` go on working; help shows evict alone."""
    box.dibs("acquire", "x")
    fence = box.fence("x")
    done = box.dibs("break", "x", "--fence", fence, "--reason", "a test")
    assert (done.returncode, done.stdout) == (0, f"x was taken from fence {fence}\n")
    assert box.dibs("break", "--help").stdout == box.dibs("evict", "--help").stdout
    assert "  evict " in box.dibs("--help").stdout
    assert "  break " not in box.dibs("--help").stdout
