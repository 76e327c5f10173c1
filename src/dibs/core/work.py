"""The work of one term: how it is told to stop, and what happens if it does not.

It knows the end of the term, and not the term: a term that the program dropped is not to be renewed for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.core.loss import Loss
from dibs.log import logger
from dibs.runtime import Runtime

if TYPE_CHECKING:
    from dibs.runtime import Interrupt

TERMINATE = "exit"
"""The word of *on_stuck* that ends the process."""


class Work:
    """What runs in the block of one term. *title* says whose work it is."""

    def __init__(self, runtime: Runtime, lost: Loss, stuck_after: float, on_stuck: str, title: str) -> None:
        self._runtime, self._lost, self._title = runtime, lost, title
        self._stuck_after, self._on_stuck = stuck_after, on_stuck
        self._stopped = runtime.event()
        self._interrupt: Interrupt | None = runtime.interrupt()
        self._job = runtime.spawn(self._attend, "dibs term")
        if self._interrupt is not None:
            lost._when_over(self._stop)
            lost._watch()

    def end(self, exc: BaseException | None) -> bool:
        """It has stopped, with *exc*; tell whether it was we who stopped it so."""
        interrupt, self._interrupt = self._interrupt, None
        self._lost._forget(self._stop)
        self._stopped.set()
        return interrupt is not None and interrupt.absorb(exc)

    def _stop(self) -> None:
        if self._lost and self._interrupt is not None:
            self._interrupt.fire()

    async def _attend(self) -> None:
        if await self._lost.wait() and not await self._stopped.wait(self._stuck_after):
            self._stuck()

    def _stuck(self) -> None:
        what = f"{self._title} was told to stop ({self._lost._reason}) and still runs after {self._stuck_after:g} s"
        if self._on_stuck == TERMINATE:
            self._runtime.end_process(f"{what}: this process is ended, so that no two lead at once")
        logger().error(
            "%s: nobody else can lead before it stops, or before the lease ends; make it stop, or use on_stuck='exit'",
            what,
        )
