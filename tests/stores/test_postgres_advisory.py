"""The session locks of PostgreSQL on a real server."""

from __future__ import annotations

import pytest

from dibs.testing.contract import StoreContract
from servers.postgres import PostgresServer


class TestContract(StoreContract):
    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url_of(scheme="postgresql+advisory")
