"""Which tests a run leaves out, and where its campaigns of histories begin.

The contract of a store has a few hundred tests, and each is written once for every runtime. A run takes each of them
in one of the two real ones, and the next run may take the other; what is mostly about the connections of a store, and
how they are left, it takes in both. ``--all-runtimes`` leaves out nothing. ``--one-runtime`` leaves out also those, and
half of the core's own tests.
"""

from __future__ import annotations

import os
import random
import zlib

import pytest

from dibs.testing.contract import StoreContract
from dibs.testing.contract.cancelling import Cancelling
from dibs.testing.contract.ownership import Ownership
from dibs.testing.contract.suite import Fixtures
from dibs.testing.contract.waiting import Waiting

REAL = ("threads", "asyncio")
"""The runtimes with ports of their own: a driver is used in another way in each."""

BOTH = (Ownership, Waiting, Cancelling)
"""What is mostly about the connections of a store."""

EMPTY = "got empty parameter set"
"""How pytest begins to say that a test was made for nothing that is here."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dibs")
    group.addoption("--all-runtimes", action="store_true", help="run the contract of each store in every runtime")
    group.addoption("--one-runtime", action="store_true", help="run no test in two real runtimes")


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Choose the base of this run; the workers inherit it."""
    os.environ.setdefault("DIBS_SIM_BASE", str(random.randrange(10**9)))


def pytest_report_header() -> str:
    return f"histories from seed {os.environ['DIBS_SIM_BASE']} on: DIBS_SIM_BASE repeats them"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    taken = {item: not _is_empty(item) and _is_taken(config, item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not taken[item]])
    items[:] = [item for item in items if taken[item]]


def _is_empty(item: pytest.Item) -> bool:
    """Whether pytest would only skip it: its store works in none of the runtimes that the test is for."""
    return any(str(mark.kwargs.get("reason", "")).startswith(EMPTY) for mark in item.iter_markers("skip"))


def _is_taken(config: pytest.Config, item: pytest.Item) -> bool:
    if config.getoption("--all-runtimes") or not isinstance(item, pytest.Function):
        return True
    runtime = item.callspec.params.get("runtime_name") if hasattr(item, "callspec") else None
    if runtime not in REAL or "asyncio_only" in item.fixturenames:
        return True
    one, test = config.getoption("--one-runtime"), item.originalname
    if item.cls is None or not issubclass(item.cls, Fixtures if one else StoreContract):
        return True
    if not set(REAL) <= set(item.cls.runtimes) or (not one and any(hasattr(kind, test) for kind in BOTH)):
        return True
    turn = zlib.crc32(f"{item.cls.__module__}.{item.cls.__name__}.{test}".encode()) + int(os.environ["DIBS_SIM_BASE"])
    return REAL[turn % 2] == runtime
