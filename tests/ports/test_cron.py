"""Cron lines: every moment once, in every zone, also where summer time begins and ends."""

from __future__ import annotations

import builtins
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from dibs.errors import Misuse, NotSupported
from dibs.ports.cron import CronLine, utc, zone


def moment(text: str, tz: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone(tz)).timestamp()


def latest(line: str, now: str, tz: str = "UTC") -> str:
    """The last moment that is not after *now*, both as the clock on the wall shows them."""
    found = CronLine(line, tz).latest(moment(now, tz))
    assert found is not None
    return f"{datetime.fromtimestamp(found, UTC).astimezone(zone(tz)):%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("line", "now", "slot"),
    [
        ("0 3 * * *", "2026-11-29 03:00:00", "2026-11-29 03:00:00"),
        ("0 3 * * *", "2026-11-29 02:59:59.999", "2026-11-28 03:00:00"),
        ("0 3 * * *", "2026-11-29 12:00", "2026-11-29 03:00:00"),
        ("*/15 * * * *", "2026-11-29 03:44:59", "2026-11-29 03:30:00"),
        ("0 0 1 * *", "2026-11-29 03:00", "2026-11-01 00:00:00"),
        ("0 0 29 2 *", "2026-11-29 03:00", "2024-02-29 00:00:00"),
        ("0 9 * * MON-FRI", "2026-11-29 12:00", "2026-11-27 09:00:00"),
        ("0 0 L * *", "2026-03-15 12:00", "2026-02-28 00:00:00"),
    ],
)
def test_the_slot_is_the_last_moment_of_the_line(line: str, now: str, slot: str) -> None:
    assert latest(line, now) == slot


def test_the_next_moment_is_after_and_not_at() -> None:
    line = CronLine("0 3 * * *", "UTC")
    assert line.next(moment("2026-11-29 03:00")) == moment("2026-11-30 03:00")
    assert line.next(moment("2026-11-29 02:59:59")) == moment("2026-11-29 03:00")


# In Berlin 2026 the hour from 2:00 is left out on 29 March and comes twice on 25 October.


def moments(line: str, tz: str, day: str, days: int = 2) -> list[str]:
    """All moments of those days that a caller meets who asks every minute."""
    begin, cron, found = moment(day), CronLine(line, tz), dict[float, None]()
    for minute in range(days * 1440):
        at = cron.latest(begin + 60 * minute)
        if at is not None and at >= begin:
            found[at] = None
    return [f"{datetime.fromtimestamp(at, UTC).astimezone(zone(tz)):%d %H:%M %Z}" for at in found]


@pytest.mark.parametrize(
    ("line", "day", "slots"),
    [
        ("30 2 * * *", "2026-03-28", ["28 02:30 CET", "29 03:00 CEST"]),
        ("0 3 * * *", "2026-03-28", ["28 03:00 CET", "29 03:00 CEST"]),
        ("30 2 * * *", "2026-10-24", ["24 02:30 CEST", "25 02:30 CEST"]),
        ("0 3 * * *", "2026-10-24", ["24 03:00 CEST", "25 03:00 CET"]),
    ],
)
def test_a_fixed_hour_comes_once_a_day_also_when_the_clocks_are_changed(line: str, day: str, slots: list[str]) -> None:
    assert moments(line, "Europe/Berlin", day) == slots


@pytest.mark.parametrize(("day", "hours"), [("2026-03-28", 48), ("2026-10-24", 48)])
def test_every_hour_is_an_hour_of_elapsed_time(day: str, hours: int) -> None:
    """Twice 2:00 in October, no 2:00 in March: 48 hours are 48 slots."""
    assert len(moments("0 * * * *", "Europe/Berlin", day)) == hours


@pytest.mark.parametrize("tz", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
def test_whoever_asks_at_any_moment_finds_the_slots_that_cronsim_counts(tz: str) -> None:
    """Forward from the beginning of the year; so no two callers ever disagree."""
    chance = random.Random(7)
    for line in ("30 2 * * *", "0 3 * * *", "0 */2 * * *", "15,45 1-3 * * *", "30 2 * * 0"):
        cron, found = CronLine(line, tz), list[float]()
        for at in CronSim(line, datetime(2026, 1, 1, tzinfo=ZoneInfo(tz))):
            found.append(at.timestamp())
            if at.year == 2027:
                break
        changes = [moment(f"2026-{day}") for day in ("03-08", "03-29", "04-05", "10-04", "10-25", "11-01")]
        for _ in range(60):
            now = chance.choice(changes) + chance.uniform(-1, 2) * 86_400
            assert cron.latest(now) == max(at for at in found if at <= now), (line, utc(now))


@pytest.mark.parametrize("line", ["", "* * * *", "61 * * * *", "@daily please", "0 3 30 2 *"])
def test_what_is_no_cron_line_is_refused(line: str) -> None:
    with pytest.raises(Misuse, match="is no cron line"):
        CronLine(line, "UTC")


@pytest.mark.parametrize("tz", ["Mars/Olympus", "../etc/passwd", "", "\0"])
def test_what_is_no_time_zone_is_refused(tz: str) -> None:
    with pytest.raises(Misuse, match="there is no such time zone here"):
        CronLine("0 3 * * *", tz)


def test_without_cronsim_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "cronsim":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NotSupported, match=r"pip install 'dibs\[cron\]'"):
        CronLine("0 3 * * *", "UTC")


def test_moments_are_written_as_utc() -> None:
    assert utc(moment("2026-11-29 03:00")) == "2026-11-29T03:00:00Z"
    assert utc(moment("2026-11-29 03:00") + timedelta(milliseconds=250).total_seconds()) == "2026-11-29T03:00:00.250Z"
