"""What happens at random to workers whose locks are on a server, and to what they send: stops, kills, lost replies.

Half of the workers talk to the server through a proxy that loses what it should bring; the others learn of a dead
server by a refused connection, as is usual. What happens to the server itself is its own nemesis's to know.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path

import dibs
from dibs.runtime.clock import boot_time
from dibs.testing.proxy import FaultProxy

from .redis_toiler import NAMES
from .stage import Actor

PAUSES = (0.0, 0.2)
"""Seconds between one harm and the next."""

STANDSTILL = (0.0, 0.1)
"""Seconds for which one is stopped who is not waited for to be overtaken."""

SHORT = 2.0
"""Seconds until a holder that was stopped should have been overtaken; else it may have stopped its tally too."""


class ServerNemesis:
    """What it did, how often; whom it killed and when."""

    ASKS: bytes
    """Stands in every request that is worth losing, or losing the answer of."""

    def __init__(self, address: tuple[str, int], folder: Path, ttl: float, size: int) -> None:
        self._folder, self._ttl = folder, ttl
        self.done = Counter[str]()
        self.killed_at: dict[int, float] = {}
        self._everyone: list[Actor] = []
        self._kinds = cycle([(colour, proxied) for colour in ("blocking", "async") for proxied in (True, False)])
        self.proxy = FaultProxy(address)
        self._size = size
        self._harms: list[tuple[Callable[[], None], int]] = [
            (self._stop_a_holder, 10),
            (self._stop_anybody, 6),
            (self._kill_a_holder, 3),
            (self._kill_anybody, 2),
            (self._lose_replies, 12),
            (self._lose_a_request, 3),
            (self._cut, 2),
            *self.harms_to_the_server(),
        ]

    def harms_to_the_server(self) -> list[tuple[Callable[[], None], int]]:
        """What else may happen, and how often as against the rest."""
        raise NotImplementedError

    def url(self, address: tuple[str, int] | None) -> str:
        """How a worker reaches the server, through the proxy at *address* or without one."""
        raise NotImplementedError

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Workers, a client to look with, and a proxy; at the end nobody is left."""
        with self.proxy, dibs.connect(self.url(None)) as self._looking:
            try:
                self._workers = [self._newcomer() for _ in range(self._size)]
                for worker in self._workers:
                    worker.hear()
                yield
            finally:
                for actor in self._everyone:
                    actor.clean_up()

    def work(self, grants: int, patience: float) -> None:
        """Do harm until there were so many grants, and each harm was done."""
        harms, weights = zip(*self._harms, strict=True)
        deadline = time.monotonic() + patience
        first = list(harms)
        random.shuffle(first)
        while self.granted() < grants or first:
            assert time.monotonic() < deadline, f"only {self.granted()} grants in {patience:g} s"
            harm = first.pop() if first else random.choices(harms, weights)[0]
            harm()
            time.sleep(random.uniform(*PAUSES))

    def end(self) -> None:
        """Let those who are left finish: nothing fails any more."""
        self.proxy.heal()
        (self._folder / "enough").touch()
        for worker in self._workers:
            worker.end()

    def granted(self) -> int:
        """How many grants there were so far."""
        written = self._folder / "granted"
        return written.stat().st_size if written.exists() else 0

    def _newcomer(self) -> Actor:
        colour, proxied = next(self._kinds)
        url = self.url(self.proxy.address if proxied else None)
        actor = Actor("redis_toiler", url, self._folder, self._ttl, colour)
        self._everyone.append(actor)
        return actor

    # --- to the workers ------------------------------------------------------------------------------------

    def _stop_a_holder(self) -> None:
        name = random.choice(NAMES)
        worker = self._holder(name)
        if worker is None:
            return
        worker.stop()
        if self._holding(name) == worker.pid:
            self.done["holder stopped until another had the lock"] += self._is_overtaken(name, worker.pid)
        worker.go_on()

    def _stop_anybody(self) -> None:
        worker = random.choice(self._workers)
        worker.stop()
        time.sleep(random.uniform(*STANDSTILL))
        worker.go_on()
        self.done["worker stopped for a moment"] += 1

    def _kill_a_holder(self) -> None:
        worker = self._holder(random.choice(NAMES))
        if worker is not None:
            self._kill(worker)

    def _kill_anybody(self) -> None:
        self._kill(random.choice(self._workers))

    def _kill(self, worker: Actor) -> None:
        self.killed_at[worker.pid] = boot_time()
        worker.kill()
        self._everyone.remove(worker)
        self._workers[self._workers.index(worker)] = self._newcomer()
        self.done["worker killed"] += 1

    def _holder(self, name: str) -> Actor | None:
        pid = self._holding(name)
        return next((worker for worker in self._workers if worker.pid == pid), None)

    def _holding(self, name: str) -> int | None:
        with suppress(dibs.StoreUnavailable):
            holder = self._looking.show(name).holder
            return holder.pid if holder else None
        return None

    def _is_overtaken(self, name: str, pid: int) -> bool:
        """Whether another got the lock, which takes the rest of the ttl."""
        deadline = time.monotonic() + SHORT
        while self._holding(name) in {pid, None}:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    # --- to what is sent -----------------------------------------------------------------------------------

    def _lose_replies(self) -> None:
        fault = self.proxy.drop_reply(to=self.ASKS, nth=random.randint(1, 5), times=random.randint(1, 5))
        self._wait_for(lambda: fault.count > 0)
        fault.lift()
        self.done["reply lost"] += fault.count

    def _lose_a_request(self) -> None:
        fault = self.proxy.drop("requests", self.ASKS, nth=random.randint(1, 5), end="rst")
        self._wait_for(lambda: fault.count > 0)
        fault.lift()
        self.done["request lost"] += fault.count

    def _cut(self) -> None:
        self.done["connection cut"] += self.proxy.cut("rst")

    @staticmethod
    def _wait_for(look: Callable[[], bool]) -> None:
        """Wait a moment for what does not have to come."""
        deadline = time.monotonic() + 0.1
        while not look() and time.monotonic() < deadline:
            time.sleep(0.002)
