"""Stops, continues and kills those who work, at random, and the one who holds the lock more often than others."""

from __future__ import annotations

import random
import time

import dibs
from dibs.runtime.clock import boot_time

from .stage import PATIENCE, Actor, Stage

PAUSES = (0.0, 0.4)
"""Seconds for which one is stopped; the ttl is 0.3 s."""

SHORT = 2.0
"""Seconds until a holder that was stopped should have been overtaken; else it may have stopped the store too."""


class Nemesis:
    """What it did: whom it killed and when, and how many it saw lose the lock while they stood still."""

    def __init__(self, stage: Stage, client: dibs.Client, ttl: float, size: int) -> None:
        self._stage, self._client, self._ttl = stage, client, ttl
        self._actors = [self._newcomer() for _ in range(size)]
        self.killed_at: dict[int, float] = {}
        self.overtaken = 0

    def work(self, kills: int, overtakings: int) -> None:
        """Go on until there were so many of both."""
        deadline = time.monotonic() + PATIENCE
        while len(self.killed_at) < kills or self.overtaken < overtakings:
            assert time.monotonic() < deadline, f"only {len(self.killed_at)} killed and {self.overtaken} overtaken"
            actor = self._holder() if random.random() < 0.7 else random.choice(self._actors)
            if random.random() < 0.4 and len(self.killed_at) < 2 * kills:
                self._kill(actor)
            else:
                self._stop(actor)

    def end(self) -> None:
        """Let those who are left finish."""
        (self._stage.folder / "enough").touch()
        for actor in self._actors:
            actor.end()

    def _stop(self, actor: Actor) -> None:
        actor.stop()
        if self._holding() == actor.pid and random.random() < 0.7:
            self.overtaken += self._wait_for_another(actor.pid)
        else:
            time.sleep(random.uniform(*PAUSES))
        actor.go_on()

    def _kill(self, actor: Actor) -> None:
        self.killed_at[actor.pid] = boot_time()
        actor.kill()
        self._actors[self._actors.index(actor)] = self._newcomer()

    def _newcomer(self) -> Actor:
        actor = self._stage.enter("toiler", self._ttl)
        actor.hear()
        return actor

    def _holder(self) -> Actor:
        pid = self._holding()
        return next((actor for actor in self._actors if actor.pid == pid), self._actors[0])

    def _holding(self) -> int | None:
        holder = self._client.show("tally").holder
        return holder.pid if holder else None

    def _wait_for_another(self, pid: int) -> bool:
        """Whether another got the lock, which takes the rest of the ttl."""
        deadline = time.monotonic() + SHORT
        while self._holding() in {pid, None}:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True
