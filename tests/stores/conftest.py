"""Two clients of PostgreSQL, for all files of its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.postgres import PostgresServer
from stores.rows import Steps, steps


@pytest.fixture
def steps_url(postgres: PostgresServer) -> str:
    """Where both are connected; a file of tests may say something else."""
    return postgres.url


@pytest.fixture
def ours(steps_url: str) -> Iterator[Steps]:
    """The client that a test is about."""
    with steps(steps_url) as client:
        yield client


@pytest.fixture
def theirs(steps_url: str) -> Iterator[Steps]:
    """Another, which sees what the first has done."""
    with steps(steps_url) as client:
        yield client
