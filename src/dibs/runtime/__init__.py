"""Time and concurrency: one interface, three implementations (`threads`, `asyncio`, `simulated`)."""

from dibs.runtime.run import run
from dibs.runtime.runtime import Event, Interrupt, Job, Runtime, Timer

__all__ = ["Event", "Interrupt", "Job", "Runtime", "Timer", "run"]
