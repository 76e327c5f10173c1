"""Real leaders that are killed, stopped and told to step down: one leads, and whoever comes back late is refused."""

from __future__ import annotations

import asyncio
import os

import pytest

import dibs
import dibs.aio
from servers.redis import RedisServer

from .ledgers import ClaimedTable
from .stage import Actor, Stage

BRIEF = 1.0
"""Seconds: the ttl where a test waits for its end. A machine that is busy for two thirds of it spoils the test."""


def pair(stage: Stage, kind: str = "heeds", ttl: float = 15.0) -> tuple[Actor, Actor, int]:
    """One that leads, one that stands by, and the term."""
    ClaimedTable(stage.folder).create()
    first = stage.enter("leader", kind, ttl)
    first.hear()
    term = first.hear()["leads"]
    second = stage.enter("leader", "heeds", ttl)
    second.hear()
    return first, second, term


def test_a_killed_leader_is_replaced(stage: Stage) -> None:
    first, second, term = pair(stage)
    first.kill()
    assert second.hear()["leads"] > term
    second.end()


def test_a_leader_that_stood_still_is_told_and_its_late_write_is_refused(stage: Stage) -> None:
    """Two terms' leaders write: the guard lets only the newer one."""
    first, second, term = pair(stage, ttl=BRIEF)
    first.stop()
    assert second.hear()["leads"] > term
    first.go_on()
    assert first.hear() == {"told": "expired", "wrote": False}
    first.kill()
    second.end()


def test_a_leader_that_steps_down_has_stopped_before_the_next_begins(stage: Stage) -> None:
    """Its last write is accepted: the next one's claim, which comes at the beginning of a term, would refuse it."""
    first, second, term = pair(stage)
    assert first.last_words() == [{"told": "stepped down", "wrote": True}]
    assert second.hear()["leads"] > term
    second.end()


def test_a_process_whose_work_ignores_the_stop_is_ended_if_asked(stage: Stage) -> None:
    first, second, term = pair(stage, "deaf", BRIEF)
    first.stop()
    assert second.hear()["leads"] > term
    first.go_on()
    code, complaint = first.died()
    assert code == 76
    assert complaint.count("\n") == 1
    assert f"which leads 'ledger' (term {term}), was told to stop (expired) and still runs" in complaint
    second.end()


def test_a_deleted_key_cancels_the_work_of_the_leader(redis_server: RedisServer) -> None:
    """The session ended at the server: no kazoo-like second leader beside the first."""

    async def main() -> None:
        async with dibs.aio.connect(redis_server.url) as client:
            election, came_back = client.election("scheduler", ttl=0.6), False
            with pytest.raises(dibs.LeaseLost) as lost:
                async with election.lead():
                    for key in redis_server.command("KEYS", "*"):
                        redis_server.command("DEL", key)
                    await asyncio.sleep(20)
                    came_back = True
            assert not came_back
            assert lost.value.reason is dibs.LossReason.TAKEN
            assert election.is_leader() == 0.0

    asyncio.run(main())


def test_a_forked_child_of_a_leader_does_not_lead(stage: Stage) -> None:
    with dibs.connect(stage.url) as client:
        election = client.election("scheduler")
        with election.lead():
            child = os.fork()
            if child == 0:
                os._exit(election.is_leader() == 0.0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
            assert election.is_leader() > 0
