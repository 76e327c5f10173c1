"""The runtimes that the contract runs in, as a table: where a test's coroutine runs, and what its clients get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dibs.runtime import Runtime, run
from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.threads import ThreadRuntime


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


SCENES: dict[str, Callable[[], Scene]] = {"threads": Threads, "asyncio": Asyncio}
"""Runtime to what makes a scene of it."""
