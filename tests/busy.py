"""Runs a test once more if the store, or the holder, was not given the processor or the disk in time.

A lock promises to say in time that it does not know. On a machine that stands still for a second it says so, and is
right; the test that waited for an answer then fails, and says nothing of the lock. Such a test is run again, twice at
most, under two conditions. The failure is, or came from, one of the errors that dibs has for this, and by the kernel's
account the machine was short of something meanwhile. A failure of any other kind counts at once: two holders are two
holders, however busy the machine. A run allows a few in all (``--max-suite-reruns``), and tells how many there were.

Nothing here runs beside the test: a second thread in this process would be in the way of the tests that fork.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dibs.errors import LeaseLost, StoreUnavailable

SHARE = 0.5
"""Of the time of a test: a machine on which some work waited for as long is busy."""

PRESSURE = [Path("/proc/pressure") / name for name in ("cpu", "io", "memory")]
"""How long some work had to wait for each of these, as Linux counts it."""

STAT = Path("/proc/stat")
"""Its first line says, among others, for how long a virtual machine was not given a processor that it wanted."""


class Watch:
    """Knows how much the machine was short of since the test began."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A test begins."""
        self._began, self._waited = time.monotonic(), waited()

    @property
    def busy(self) -> bool:
        """Whether a test that needed an answer in time could not have it."""
        lasted = time.monotonic() - self._began
        return any(now - before > SHARE * lasted for before, now in zip(self._waited, waited(), strict=True))


def waited() -> list[float]:
    """Seconds for which some work waited for each resource of this machine; nothing where that is not told."""
    try:
        pressure = [int(path.read_text(encoding="ascii").splitlines()[0].rpartition("total=")[2]) for path in PRESSURE]
        stolen = int(STAT.read_text(encoding="ascii").splitlines()[0].split()[8])
    except (OSError, ValueError, IndexError):
        return []
    return [*(total / 1e6 for total in pressure), stolen / os.sysconf("SC_CLK_TCK")]


def late(error: BaseException | None) -> bool:
    """Whether *error* is, or came from, an answer or a renewal that did not come in time."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, StoreUnavailable | LeaseLost):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


watch = Watch()


def _again(error: BaseException | None) -> bool:
    return late(error) and watch.busy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.flaky(reruns=2, condition=_again))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    watch.begin()
