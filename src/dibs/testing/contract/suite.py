"""The contract as one class to subclass, and how its tests, each a coroutine, run in each runtime."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

from dibs.runtime import Runtime
from dibs.stores import open_store
from dibs.stores.guarantees import Ability
from dibs.stores.store import Store
from dibs.testing.contract.scenes import SCENES
from dibs.testing.contract.world import SHORT, World

Test = Callable[..., Awaitable[None]]


def needs(ability: Ability) -> Callable[[Test], Test]:
    """Mark a test that a store may leave out, if it declares that it cannot do this."""

    def mark(test: Test) -> Test:
        test.needs = (*getattr(test, "needs", ()), ability)  # type: ignore[attr-defined]
        return test

    return mark


def in_a_world(test: Test) -> Callable[..., None]:
    """Make a test that pytest can call of one written as a coroutine; its first fixture is *world*."""

    @functools.wraps(test)
    def run_it(*args: Any, world: World, **fixtures: Any) -> None:
        async def main() -> None:
            skip_what_is_declared(test, world.store)
            await test(*args, world=world, **fixtures)

        world.run(main)

    return run_it


def skip_what_is_declared(test: Test, store: Store) -> None:
    """Skip *test*, with the store's own words, if the store says that it cannot do what is tested."""
    for ability in getattr(test, "needs", ()):
        why = store.guarantees.cannot.get(ability)
        if why is not None:
            pytest.skip(f"the store {store.guarantees.name} declares that it has no {ability}: {why}")


class Kind:
    """One kind of tests: its coroutines become tests when the class is made."""

    def __init_subclass__(cls) -> None:
        for name, member in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(member):
                setattr(cls, name, in_a_world(member))


class Fixtures:
    """What a store is tested with. A subclass says where the store is; the rest may stay as it is."""

    runtimes: ClassVar[tuple[str, ...]] = tuple(SCENES)
    """The runtimes that the store works in."""

    short: ClassVar[float] = SHORT
    """Seconds: a ttl that tests wait out. Longer for a store that gives each of several servers a small part of it."""

    @pytest.fixture
    def url(self) -> str:
        """The URL of a store that is empty, or that nobody else uses."""
        raise NotImplementedError("say where the store is: a fixture called url")

    def open_store(self, url: str, namespace: str, runtime: Runtime) -> Store:
        """Make the store; override it for one that has no entry point yet."""
        return open_store(url, namespace, runtime)

    @pytest.fixture
    def world(self, url: str, runtime_name: str) -> World:
        """The world of one test, in one of the runtimes."""
        return World(SCENES[runtime_name](), functools.partial(self.open_store, url), self.short)

    @pytest.fixture
    def asyncio_only(self, runtime_name: str) -> None:
        """For the few tests that are about tasks and cancels: they are made for one runtime only."""
        assert runtime_name == "asyncio"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test once in each runtime."""
        if "runtime_name" in metafunc.fixturenames:
            only = ("asyncio",) if "asyncio_only" in metafunc.fixturenames else self.runtimes
            metafunc.parametrize("runtime_name", [name for name in self.runtimes if name in only])
