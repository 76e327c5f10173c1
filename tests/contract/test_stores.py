"""Every built-in store passes the contract in every runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.testing.contract import StoreContract


class TestMemory(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"memory:{tmp_path.name}"
