"""`dibs show`: all that is known of one lock."""

from __future__ import annotations

from .processes import Sandbox, until


def test_a_lock_that_nobody_ever_took(box: Sandbox) -> None:
    text = box.dibs("show", "x").stdout
    assert "nobody" in text
    assert "never locked" in text
    facts = box.json("show", "x")
    assert (facts["fence"], facts["holder"], facts["waiting"], facts["evicted"]) == (0, None, [], None)


def test_holder_last_fence_and_waiters_in_order(box: Sandbox) -> None:
    box.dibs("acquire", "x", "--note", "mine")
    for place in (1, 2, 3):
        box.start("run", "x", "--note", f"waiter {place}", "--", "true")
        until(lambda: len(box.waiting("x")) == place)  # noqa: B023 - looked at in this round only
    facts = box.json("show", "x")
    assert facts["holder"]["note"] == "mine"
    assert facts["fence"] == facts["holder"]["fence"]
    assert [waiter["note"] for waiter in facts["waiting"]] == ["waiter 1", "waiter 2", "waiter 3"]
    lines = box.dibs("show", "x").stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("waits")] == ["1", "2", "3"]


def test_the_last_time_it_was_broken(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    fence = box.fence("x")
    box.dibs("break", "x", "--fence", fence, "--reason", "db3 is dead")
    facts = box.json("show", "x")
    assert (facts["holder"], facts["fence"], facts["evicted"]["reason"]) == (None, int(fence), "db3 is dead")
    assert "db3 is dead" in box.dibs("show", "x").stdout


def test_what_the_store_promises(box: Sandbox) -> None:
    assert box.json("show", "x")["guarantees"]["client_crash"]["effect"] == "freed"
    assert "client crash" in box.dibs("show", "x").stdout
