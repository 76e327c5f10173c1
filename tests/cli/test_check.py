"""`dibs check` tells whether a lease still holds, and changes nothing."""

from __future__ import annotations

import json

from .processes import Sandbox


def test_a_lease_that_holds(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    done = box.dibs("check", token)
    assert done.returncode == 0
    assert done.stdout.startswith("x is held with fence ")


def test_a_lease_that_is_over(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    box.dibs("release", token)
    done = box.dibs("check", token)
    assert (done.returncode, done.stdout) == (76, "")
    assert done.stderr.startswith("dibs: the lease on 'x' with fence ")
    assert done.stderr.endswith("held by nobody\n")


def test_a_lease_that_another_has_taken_over(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    box.dibs("release", token)
    box.dibs("acquire", "x", "--note", "the next")
    done = box.dibs("check", "--json", token)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["holds"], facts["holder"]["note"]) == (76, False, "the next")


def test_each_of_several_who_share_a_name_holds_it(box: Sandbox) -> None:
    for name, *how in (("x", "--shared"), ("y", "--slots", "2")):
        tokens = [box.dibs("acquire", name, *how).stdout for _ in range(2)]
        assert [box.dibs("check", token).returncode for token in tokens] == [0, 0]
        box.dibs("release", tokens[0])
        assert [box.dibs("check", token).returncode for token in tokens] == [76, 0]


def test_it_changes_nothing(box: Sandbox) -> None:
    token = box.dibs("acquire", "x").stdout
    before = box.holder("x")
    box.dibs("check", token)
    after = box.holder("x")
    assert after.pop("expires_in") <= before.pop("expires_in")
    assert after == before
