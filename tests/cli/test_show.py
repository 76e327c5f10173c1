"""`dibs show`: all that is known of one lock."""

from __future__ import annotations

import json

from dibs.cli.lines import as_json
from dibs.cli.show import facts, page
from dibs.holder import LockState
from dibs.stores import Ability
from dibs.stores.memory.store import MemoryStore

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


def test_each_of_several_holders_is_shown_and_one_can_be_broken(box: Sandbox) -> None:
    for note in ("first", "second"):
        box.dibs("acquire", "x", "--slots", "4", "--weight", "2", "--note", note)
    facts = box.json("show", "x")
    assert [holder["note"] for holder in facts["holders"]] == ["first", "second"]
    assert facts["holder"] == facts["holders"][0]
    lines = [line for line in box.dibs("show", "x").stdout.splitlines() if line.startswith("held by")]
    assert ["2 of 4 slots" in line for line in lines] == [True, True]
    box.dibs("evict", "x", "--fence", str(facts["holders"][0]["fence"]), "--reason", "it hangs")
    assert [holder["note"] for holder in box.json("show", "x")["holders"]] == ["second"]


def test_the_last_time_it_was_broken(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    fence = box.fence("x")
    box.dibs("evict", "x", "--fence", fence, "--reason", "db3 is dead")
    facts = box.json("show", "x")
    assert (facts["holder"], facts["fence"], facts["evicted"]["reason"]) == (None, int(fence), "db3 is dead")
    assert "db3 is dead" in box.dibs("show", "x").stdout


def test_what_the_store_promises_is_shown_on_request(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    assert "client crash" not in box.dibs("show", "x").stdout
    lines = box.dibs("show", "x", "--store").stdout.splitlines()
    assert any(line.startswith("  client crash      freed: ") for line in lines)
    assert box.json("show", "x")["guarantees"]["client_crash"]["effect"] == "freed"


def test_a_store_that_can_do_everything_is_not_said_to_lack_anything(box: Sandbox) -> None:
    box.dibs("acquire", "x")
    assert "{}" not in box.dibs("show", "x", "--store").stdout
    assert box.json("show", "x")["guarantees"]["cannot"] == {}


def test_what_a_store_cannot_do_is_said_line_by_line() -> None:
    state, lacking = (
        LockState("x", 0, None, (), None),
        MemoryStore.guarantees._replace(cannot={Ability.HANDOVER: "take another"}),
    )
    assert page(state, lacking, promised=True).endswith("\n  cannot hand-over  take another")
    assert json.loads(as_json(facts(state, lacking)))["guarantees"]["cannot"] == {"hand-over": "take another"}
