"""The queue inside one client: who waits for a name here waits for its turn to wait at the store.

So a process costs the store one waiter for each name, however many of its threads or tasks want it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

from dibs.core.deadline import Deadline
from dibs.runtime import Event, Runtime


class Waiters:
    """A queue of waiters for each name; the first one has the turn."""

    __slots__ = ("_mutex", "_queues", "_runtime")

    def __init__(self, runtime: Runtime, mutex: AbstractContextManager[Any]) -> None:
        self._runtime, self._mutex = runtime, mutex
        self._queues: dict[str, deque[Event]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether somebody here waits for *name*."""
        return name in self._queues

    def place(self) -> Event:
        """A new place to stand in line with. The event is set when it is our turn."""
        return self._runtime.event()

    def join(self, name: str, place: Event) -> None:
        """Stand in line for *name*. `leave` whatever happens, also when Ctrl-C comes out of this."""
        with self._mutex:
            line = self._queues.setdefault(name, deque())
            line.append(place)
            if len(line) == 1:
                place.set()

    async def reach(self, place: Event, deadline: Deadline) -> bool:
        """Wait for the turn; False if *deadline* came first."""
        while not place.is_set() and not deadline.passed():
            await place.wait(min(deadline.left(), deadline.look_every, 3600.0))
        return place.is_set()

    def call_all(self) -> None:
        """Let all of them look: the client is closed."""
        with self._mutex:
            for line in self._queues.values():
                for place in line:
                    place.set()

    def leave(self, name: str, place: Event) -> None:
        """Go out of the line; if it was our turn, the next one has it."""
        with self._mutex:
            line = self._queues.get(name)
            if line is not None:
                with contextlib.suppress(ValueError):
                    line.remove(place)
                if line:
                    line[0].set()
                else:
                    self._queues.pop(name, None)
