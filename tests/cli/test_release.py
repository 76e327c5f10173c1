"""`dibs release` gives back what `dibs acquire` took, and nothing else."""

from __future__ import annotations

from .processes import Sandbox


def test_it_frees_the_lock(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    done = box.dibs("release", token)
    assert done.returncode == 0
    assert done.stdout.endswith("was given back\n")
    assert box.holder("x") is None


def test_the_lease_can_come_from_the_environment(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    assert box.dibs("release", "--json", DIBS_TOKEN=token).stdout.startswith('{"released": true')


def test_json_tells_that_the_lease_is_over(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    fence = box.fence("x")
    box.dibs("evict", "x", "--fence", fence, "--reason", "a test")
    assert box.json("release", token) == {"released": False, "name": "x", "fence": int(fence), "holder": None}


def test_what_is_not_held_any_more_is_not_given_back(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    box.dibs("release", token)
    box.dibs("acquire", "x", "--note", "the next")
    done = box.dibs("release", token)
    assert done.returncode == 76
    assert done.stderr.startswith("dibs: the lease on 'x' with fence ")
    assert "is over (given back, expired or broken); the lock is held by " in done.stderr
    assert "stop the work" not in done.stderr
    assert box.holder("x")["note"] == "the next"
