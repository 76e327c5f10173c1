"""Semaphores between real processes: eight of them hammer on three slots, and one that is killed frees its slot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servers.etcd import EtcdServer
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from servers.zookeeper import ZooKeeperServer

from .slot import SLOTS, Room
from .stage import Actor, Stage, until

HAMMERS = [1, 1, 1, 1, 1, 2, 2, 3]
"""The weight of each process."""

ENOUGH = 60
"""How often somebody has to have been inside."""

SHORT = 1.0
"""The ttl where only that frees a slot."""


@pytest.fixture(params=["sqlite", "redis", "postgres", "zookeeper", "etcd"])
def place(request: pytest.FixtureRequest, stage: Stage) -> Stage:
    """A stage whose store is one of those that have semaphores."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        stage.url = server.url
    if request.param == "postgres":
        database: PostgresServer = request.getfixturevalue("postgres")
        stage.url = database.url
    if request.param == "zookeeper":
        ensemble: ZooKeeperServer = request.getfixturevalue("zookeeper")
        stage.url = ensemble.url
    if request.param == "etcd":
        etcd: EtcdServer = request.getfixturevalue("etcd_server")
        stage.url = etcd.url
    return stage


def test_eight_processes_are_never_more_inside_than_there_are_slots(place: Stage) -> None:
    room, hammers = Room(place.folder), [place.enter("slot", "hammer", weight, 10) for weight in HAMMERS]
    everybody(hammers, Actor.hear)
    everybody(hammers, lambda hammer: hammer.tell("go"))
    until(lambda: room.numbers()[2] >= ENOUGH, f"the {ENOUGH}th who goes in")
    (place.folder / "enough").touch()
    everybody(hammers, Actor.end)
    inside, most, _ = room.numbers()
    assert (inside, most) == (0, SLOTS)


def test_the_slot_of_one_that_was_killed_goes_to_the_next(place: Stage) -> None:
    """In SQLite at once, since the kernel says that it is gone; elsewhere when its lease is over."""
    ttl = 60.0 if place.url.startswith("sqlite") else SHORT
    holders = [place.enter("slot", "hold", 1, ttl if number == 0 else 60) for number in range(SLOTS)]
    everybody(holders, Actor.hear)
    fences = [holder.ask("go") for holder in holders]
    waiter = place.enter("slot", "hold", 1, 60)
    waiter.hear()
    waiter.tell("go")
    holders[0].kill()
    assert waiter.hear() > max(fences)
    everybody([*holders[1:], waiter], Actor.end)


def everybody(actors: list[Actor], does: Callable[[Actor], object]) -> None:
    """Let all of them do it, one after the other."""
    for actor in actors:
        does(actor)


def test_the_room_counts(tmp_path: Path) -> None:
    """The counter by itself: else a broken one would find every semaphore in order."""
    room = Room(tmp_path)
    room.enter(2)
    room.enter(3)
    room.leave(2)
    assert room.numbers() == [3, 5, 2]
