"""Time and concurrency: one interface, with the implementations `threads` and `asyncio`; `dibs.testing` has a third."""

from dibs.runtime.run import run
from dibs.runtime.runtime import Driver, Event, Interrupt, Job, Runtime, Timer

__all__ = ["Driver", "Event", "Interrupt", "Job", "Runtime", "Timer", "run"]
