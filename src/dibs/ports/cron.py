"""Moments as people write them: cron lines by `cronsim <https://github.com/cuu508/cronsim>`_, zones, and dates.

The moments of a line are those that cronsim gives going forward, which are Debian cron's. In a zone with summer time, a
line with a fixed hour has each of its days once: what falls into the hour that is left out is at the first moment after
it, and the hour that comes twice counts once. A line with ``*`` in minute or hour goes by elapsed time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from dibs.errors import Misuse, NotSupported

if TYPE_CHECKING:
    from cronsim import CronSim

LOOK_BACK = (timedelta(minutes=2), timedelta(hours=2), timedelta(days=2), timedelta(days=40), timedelta(days=366 * 9))
"""How far back a moment of a line is looked for: from where it is cheap to where the 29th of February is."""


class CronLine:
    """The moments that *line* names in the zone *tz*, as unix time."""

    def __init__(self, line: str, tz: str) -> None:
        self._line, self._zone = line, zone(tz)
        self._from(0.0)

    def latest(self, now: float) -> float | None:
        """The last moment that is not after *now*; None if there was none for years."""
        for span in LOOK_BACK:
            found = None
            for moment in self._from(now - span.total_seconds()):
                if moment > now:
                    break
                found = moment
            if found is not None:
                return found
        return None

    def next(self, after: float) -> float | None:
        """The first moment after *after*; None if there is none."""
        return next((moment for moment in self._from(after) if moment > after), None)

    def _from(self, start: float) -> Iterator[float]:
        """Parse it, and give its moments from about *start* on."""
        moments = _parsed(self._line, datetime.fromtimestamp(start, UTC).astimezone(self._zone))
        return (moment.timestamp() for moment in moments)


def zone(name: str) -> tzinfo:
    """Return the time zone called *name*."""
    if name == "UTC":
        return UTC  # also where there is no database of zones
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, OSError) as exc:
        raise Misuse(f"tz={name!r}: there is no such time zone here; try UTC, or install tzdata") from exc


def utc(moment: float) -> str:
    """Write *moment* as ISO 8601 has it, in UTC."""
    at = datetime.fromtimestamp(round(moment, 3), UTC)
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds").replace("+00:00", "Z")


def _parsed(line: str, start: datetime) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra, and only cron lines need it
    except ImportError as exc:
        raise NotSupported(
            "cron lines need the package cronsim: pip install 'dibs[cron]'; every= needs nothing"
        ) from exc
    try:
        return CronSim(line, start)
    except CronSimError as exc:
        raise Misuse(f"cron={line!r} is no cron line: {exc}") from exc
