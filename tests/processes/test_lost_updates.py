"""Read, wait, write: what a lock keeps, what a stopped process breaks in spite of it, and what the fence saves."""

from __future__ import annotations

import pytest

from .ledgers import LEDGERS, PlainFile
from .stage import Actor, Stage

PROCESSES, ROUNDS = 8, 200

TTL = 0.3


def test_eight_processes_lose_no_update(stage: Stage) -> None:
    """Under the lock, reading and writing back is as good as atomic."""
    number = PlainFile(stage.folder)
    number.create()
    actors = [stage.enter("counter", ROUNDS) for _ in range(PROCESSES)]
    for actor in actors:
        actor.hear()
    for actor in actors:
        actor.tell("go")
    for actor in actors:
        actor.end()
    assert number.read(0) == PROCESSES * ROUNDS


def pair(stage: Stage, ledger: str) -> tuple[Actor, Actor]:
    """One that holds the lock, has read the number, and stands still; and one that holds the lock after it."""
    LEDGERS[ledger](stage.folder).create()
    slow, fast = (stage.enter("clerk", ledger, TTL) for _ in range(2))
    first = slow.ask("acquire")
    assert slow.ask("read") == 0
    slow.stop()  # its ttl runs out, and nobody renews
    assert fast.ask("acquire") > first
    return slow, fast


def outcome(stage: Stage, ledger: str, slow: Actor, fast: Actor) -> int | None:
    """What the ledger has in the end, when both have learnt what became of their lease."""
    assert (slow.ask("release"), fast.ask("release")) == ("expired", "released")
    for actor in (slow, fast):
        actor.end()
    return LEDGERS[ledger](stage.folder).read(2**53)


@pytest.mark.parametrize(
    ("ledger", "accepted", "balance"),
    [
        pytest.param("PlainFile", True, 10, id="a plain file loses the 1"),
        pytest.param("CheckedTable", False, 1, id="a fence at the write keeps it"),
        pytest.param("ClaimedTable", False, 1, id="a fence at read and write keeps it"),
    ],
)
def test_a_stopped_holder_goes_on_after_the_next_has_written(
    stage: Stage, ledger: str, accepted: bool, balance: int
) -> None:
    """Without a guard the update of the next is lost; the fence refuses the old holder, who is told so."""
    slow, fast = pair(stage, ledger)
    fast.ask("read")
    assert fast.ask("add", 1) is True
    slow.go_on()
    assert slow.ask("add", 10) is accepted
    assert outcome(stage, ledger, slow, fast) == balance


@pytest.mark.parametrize(
    ("ledger", "accepted"),
    [
        pytest.param("PlainFile", True, id="a plain file loses the 10"),
        pytest.param("CheckedTable", True, id="a fence at the write only loses it too"),
        pytest.param("ClaimedTable", False, id="a fence at read and write refuses it"),
    ],
)
def test_a_stopped_holder_goes_on_while_the_next_is_between_read_and_write(
    stage: Stage, ledger: str, accepted: bool
) -> None:
    """The resource can only refuse what is older than a fence it has seen: show it the fence before you read."""
    slow, fast = pair(stage, ledger)
    fast.ask("read")
    slow.go_on()
    assert slow.ask("add", 10) is accepted
    assert fast.ask("add", 1) is True
    assert outcome(stage, ledger, slow, fast) == 1
