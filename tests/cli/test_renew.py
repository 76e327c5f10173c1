"""`dibs renew` extends a lease by its ttl, and never brings one back."""

from __future__ import annotations

import subprocess
import sys

from .processes import Sandbox, until


def test_it_extends_the_lease(box: Sandbox) -> None:
    token = box.dibs("acquire", "x", "--ttl", "60").stdout
    until(lambda: box.holder("x")["expires_in"] < 57)

    def is_extended() -> bool:
        done = box.dibs("renew", token)
        assert done.returncode == 0
        assert done.stdout.startswith("x with fence ")
        return bool(box.holder("x")["expires_in"] > 57)

    until(is_extended)  # on a busy machine it may take seconds to look


def test_the_fence_and_the_note_stay(box: Sandbox) -> None:
    token = box.dibs("acquire", "x", "--note", "mine").stdout
    before = box.holder("x")
    facts = box.json("renew", token)
    after = box.holder("x")
    assert (after["fence"], after["note"]) == (before["fence"], "mine")
    assert (facts["renewed"], facts["fence"]) == (True, before["fence"])


def test_a_lease_that_was_lost_stays_lost(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    box.dibs("evict", "x", "--fence", box.fence("x"), "--reason", "a test")
    done = box.dibs("renew", token)
    assert done.returncode == 76
    assert done.stderr.startswith("dibs: the lease on 'x'")
    assert done.stderr.count("\n") == 1
    assert box.holder("x") is None


def test_the_holder_stays_who_it_was(box: Sandbox) -> None:
    """The command of `dibs run` may renew: its wrapper stays the holder, and its death still frees the lock."""
    script = f"{sys.executable} -m dibs renew && echo > ready && sleep 60"
    process = box.start("run", "x", "--", "sh", "-c", script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: box.file("ready").exists())
    assert box.holder("x")["pid"] == process.pid
    process.kill()
    assert box.dibs("run", "-w", "5", "x", "--", "true").returncode == 0
