"""The runtimes that the contract runs in, as a table: where a test's coroutine runs, and what its clients get."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import pytest

from dibs.runtime import Runtime, run
from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.threads import ThreadRuntime
from dibs.testing.simulation.runtime import SimulatedRuntime
from dibs.testing.simulation.scheduler import Scheduler


class Scene(Protocol):
    """Where one test runs."""

    real: bool
    """Whether time passes by itself, so that a busy machine can spoil what is measured."""

    def runtime(self) -> Runtime:
        """A runtime for one more client."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* to its end."""


class Threads:
    """Blocking code: every await is a plain call."""

    real = True

    def runtime(self) -> Runtime:
        """A runtime for one more client."""
        return ThreadRuntime()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in this thread."""
        run(work)


class Asyncio:
    """One event loop for each test."""

    real = True

    def runtime(self) -> Runtime:
        """A runtime for one more client of the same loop."""
        return AsyncioRuntime()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in a loop of its own."""
        asyncio.run(work)


class Simulated:
    """One process of a simulation, whose time costs none. A failure names its seed; ``DIBS_SIM_SEED`` repeats it."""

    real = False

    def __init__(self) -> None:
        self._seed = int(os.environ.get("DIBS_SIM_SEED") or random.getrandbits(32))
        self._scheduler = Scheduler(self._seed)
        self._process = SimulatedRuntime(self._scheduler, "contract", pid=os.getpid())

    def runtime(self) -> Runtime:
        """The same for all: tasks of different processes cannot meet."""
        return self._process

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it, and what it starts, in virtual time."""
        errors: list[BaseException] = []

        async def main() -> None:
            try:
                await work
            except BaseException as error:  # noqa: BLE001 - raised below, as it is
                errors.append(error)

        self._process.start(main(), "test")
        try:
            self._scheduler.run()
        finally:
            self._scheduler.close()
        for error in errors:
            if not isinstance(error, pytest.skip.Exception):
                error.add_note(f"simulated with DIBS_SIM_SEED={self._seed}")
            raise error


SCENES: dict[str, Callable[[], Scene]] = {"threads": Threads, "asyncio": Asyncio, "simulated": Simulated}
"""Runtime to what makes a scene of it."""
