"""Something that one may use at a time, given out in the order of asking; for threads and for tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from dibs.runtime import Event, Runtime

T = TypeVar("T")


class Turns(Generic[T]):
    """Some things of a kind: whoever takes one has it alone, until it is given back."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._mutex = runtime, runtime.mutex()
        self._free: list[T] = []
        self._line: deque[tuple[Event, list[T]]] = deque()

    def take_now(self) -> T | None:
        """Take one if any is free: on the way of every request, so without a step that could wait."""
        with self._mutex:
            return self._free.pop() if self._free else None

    async def take(self, until: float, instead: Callable[[], bool] | None = None) -> T | None:
        """Take one; None if none came free before *until*, or if *instead* says that a new one is to be made."""
        with self._mutex:
            if self._free:
                return self._free.pop()
            if instead is not None and instead():
                return None
            place: tuple[Event, list[T]] = (self._runtime.event(), [])
            self._line.append(place)
        event, given = place
        try:
            await event.wait(max(0.0, until - self._runtime.now()))
        except BaseException:
            self._leave(place)
            for thing in given:
                self.give_back(thing)
            raise
        self._leave(place)
        return given[0] if given else None

    def give_back(self, thing: T) -> None:
        """Let the next have it, or whoever comes."""
        with self._mutex:
            if not self._line:
                self._free.append(thing)
                return
            event, given = self._line.popleft()
            given.append(thing)
        event.set()

    def wake(self) -> None:
        """Let the next see that a new one may be made."""
        with self._mutex:
            event = self._line.popleft()[0] if self._line else None
        if event is not None:
            event.set()

    def empty(self) -> list[T]:
        """Take all that are free."""
        with self._mutex:
            free, self._free = self._free, []
        return free

    def _leave(self, place: tuple[Event, list[T]]) -> None:
        with self._mutex:
            if place in self._line:
                self._line.remove(place)
