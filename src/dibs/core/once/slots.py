"""Which slot of a schedule it is, by the store's clock: pure arithmetic on unix time."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from dibs.core.checks import Seconds, checked_length, checked_name, shown
from dibs.errors import Misuse
from dibs.ports.cron import CronLine, utc

SHORTEST = 0.01
"""Seconds between two slots: a store's clock and a request are not more exact."""


class Slot(NamedTuple):
    """One slot of a schedule."""

    key: str
    """What it is called: the moment at which it begins, in UTC, or what the caller says."""
    at: float | None = None
    """When it begins: unix time; None for a slot without a time."""
    until: float | None = None
    """When the next one begins, where that is known."""


class Schedule(Protocol):
    """Something that tells which slot it is."""

    def slot(self, now: float) -> Slot | None:
        """The slot at the moment *now*; None if there is none yet."""


class Named(NamedTuple):
    """One slot, which the caller names."""

    key: str

    def slot(self, now: float) -> Slot | None:
        """That one, whatever the time is."""
        return Slot(self.key)


class Every(NamedTuple):
    """A slot each *seconds*, counted from the beginning of 1970, so that all machines count alike."""

    seconds: float

    def slot(self, now: float) -> Slot | None:
        """The one that *now* lies in."""
        number = math.floor(now / self.seconds)
        return Slot(utc(number * self.seconds), number * self.seconds, (number + 1) * self.seconds)


class Cron:
    """The slots of a cron line."""

    def __init__(self, line: str, tz: str) -> None:
        self._line = CronLine(line, tz)

    def slot(self, now: float) -> Slot | None:
        """The one that began last."""
        at = self._line.latest(now)
        return None if at is None else Slot(utc(at), at, self._line.next(at))


def schedule_of(slot: object, cron: object, every: Seconds | None, tz: object) -> Schedule:
    """Return the schedule that the arguments of `Client.once` describe: exactly one of three."""
    if sum(each is not None for each in (slot, cron, every)) != 1:
        raise Misuse("give exactly one of slot=, cron= and every=: it says what is to be done once")
    if not isinstance(tz, str):
        raise Misuse(f"tz={shown(tz)}: it is the name of a time zone, such as Europe/Berlin")
    if tz != "UTC" and cron is None:
        raise Misuse(f"tz={shown(tz)} says what a cron line means; slot= and every= have no zone")
    if every is not None:
        return Every(checked_length(every, "every", at_least=SHORTEST))
    if cron is not None:
        if not isinstance(cron, str):
            raise Misuse(f"cron={shown(cron)}: it is a line such as '0 3 * * *'")
        return Cron(cron, tz)
    return Named(checked_name(slot, "slot"))
