"""A stage for every test with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .stage import Stage

pytest.register_assert_rewrite("processes.ordeal")  # so that what it asserts is explained as in a test


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.clean_up()
