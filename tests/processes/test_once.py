"""Five replicas with the same cron line and clocks that are minutes apart: each slot is completed once, none is missed.

The clock of the Redis server is moved from slot to slot, so that five hours of schedule pass in seconds. The replicas
have wall clocks of their own, which stay wrong by minutes, one by more than an hour. In some slots whoever runs it is
killed with SIGKILL, and one of the others, which stand by, takes over.
"""

from __future__ import annotations

import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.ports.cron import utc
from servers.clock import Clock
from servers.redis import RedisServer

from .stage import Actor

LINE, LENGTH = "*/3 * * * *", 180

SLOTS = 100

KILLED_IN = range(7, SLOTS, 12)

FIRST = 1_800_000_000 // LENGTH * LENGTH
"""When the first slot begins: unix time, by the server's clock."""

SKEWS = (-4000.0, -240.0, 0.0, 300.0, 3700.0)
"""Seconds by which the wall clocks of the replicas are wrong."""

TTL = 0.6


class Crew:
    """The replicas, and what they say."""

    def __init__(self, url: str, folder: Path, clocks: list[Clock]) -> None:
        self._url, self._folder, self._clocks = url, folder, clocks
        self.actors = [self._replica(number) for number in range(len(clocks))]

    def _replica(self, number: int) -> Actor:
        actor = Actor("replica", self._url, self._folder, LINE, TTL, **self._clocks[number].environment)
        assert abs(actor.hear()["wall"] - time.time() - SKEWS[number]) < 30, "its clock is as wrong as it should be"
        return actor

    def slot(self, word: str) -> list[dict[str, Any]]:
        """Let all call for the slot at once; whoever hangs in it is killed and replaced. What the others said."""
        for actor in self.actors:
            actor.tell(word)
        said = []
        for number, actor in self._as_they_answer():
            answer = actor.hear()
            if "hangs" in answer:
                actor.kill()
                self.actors[number] = self._replica(number)
            else:
                said.append(answer)
        return said

    def _as_they_answer(self) -> Iterator[tuple[int, Actor]]:
        """Those who have something to say, one after another, until all have."""
        waiting = dict(enumerate(self.actors))
        with selectors.DefaultSelector() as selector:
            for number, actor in waiting.items():
                selector.register(actor.mouth, selectors.EVENT_READ, number)
            while waiting:
                ready = selector.select(20)
                assert ready, "nobody answers"
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    yield key.data, waiting.pop(key.data)

    def clean_up(self) -> None:
        for actor in self.actors:
            actor.clean_up()


@pytest.mark.timeout(120)
def test_a_hundred_slots_are_completed_once_each(start_redis: Callable[..., RedisServer], tmp_path: Path) -> None:
    with ExitStack() as stack:
        clocks = [stack.enter_context(Clock()) for _ in SKEWS]
        for clock, skew in zip(clocks, SKEWS, strict=True):
            clock.shift(skew)
        theirs = stack.enter_context(Clock())
        server = start_redis(clock=theirs)
        crew = Crew(server.url, tmp_path, clocks)
        stack.callback(crew.clean_up)
        said = []
        for number in range(SLOTS):
            theirs.shift(FIRST + number * LENGTH + 10 - time.time())
            said.append(crew.slot("hang" if number in KILLED_IN else "go"))
        with dibs.connect(server.url) as client:
            remembered = client.once("report", cron=LINE).history()
    journal = [line.split() for line in (tmp_path / "journal").read_text(encoding="utf-8").splitlines()]
    completed = [slot for what, slot, *_ in journal if what == "completed"]
    starts = Counter(slot for what, slot, *_ in journal if what == "started")
    assert len(completed) == len(set(completed)) == SLOTS
    assert completed == [utc(FIRST + number * LENGTH) for number in range(SLOTS)], "in order, and none is missing"
    assert sorted(starts) == completed
    assert sorted(starts.values()) == [1] * (SLOTS - len(KILLED_IN)) + [2] * len(KILLED_IN)
    for number, answers in enumerate(said):
        assert sum("ran" in answer for answer in answers) == 1
        assert len(answers) == len(SKEWS) - (number in KILLED_IN)
        assert {answer["reason"] for answer in answers if "skipped" in answer} == {"already ran"}
    fences = [int(fence) for *_, fence in journal]
    assert fences == sorted(fences)
    good = [past.slot for past in remembered if past.outcome == "ok"]
    assert good == completed[-len(good) :]
