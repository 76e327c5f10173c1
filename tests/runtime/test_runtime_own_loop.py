"""Another runtime is one file: with it the core passes the contract on the memory store, as with those of dibs."""

from __future__ import annotations

import functools
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from dibs.runtime import Runtime
from dibs.testing.contract.contract import StoreContract
from dibs.testing.contract.world import World
from runtime.own_loop import Loop, LoopRuntime


class OwnLoop:
    """The scene of one test."""

    real = True

    def __init__(self) -> None:
        self._loop = Loop()

    def runtime(self) -> Runtime:
        return LoopRuntime(self._loop)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.run(work)


class TestContract(StoreContract):
    runtimes = ("own loop",)

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"memory:{tmp_path.name}"

    @pytest.fixture
    def world(self, url: str, runtime_name: str) -> World:
        assert runtime_name == "own loop"
        return World(OwnLoop(), functools.partial(self.open_store, url), self.short)
