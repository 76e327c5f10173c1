"""How often the contract had to measure again, or to look at an order again, because the machine was busy.

A single test forgives that. A run tells the sum, and fails in CI if it is too high: then the store is slow, not the
machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from dibs.testing.contract import world

MOST = 150
"""Tries too many, in a whole run, that CI puts up with."""

KEY = "tries too many"

_total = [0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = world.tries.too_many
    try:
        yield
    finally:
        if more := world.tries.too_many - before:
            item.user_properties.append((KEY, more))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what the workers tell."""
    if report.when == "call" and not os.environ.get("PYTEST_XDIST_WORKER"):
        _total[0] += sum(int(str(value)) for name, value in report.user_properties if name == KEY)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _total[0]:
        terminalreporter.write_line(f"{_total[0]} measurements of the contract were taken again (CI allows {MOST})")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("CI") and _total[0] > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
