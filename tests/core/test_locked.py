"""The decorator, in both colours: names from arguments, and what it refuses where it is written."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

import dibs
import dibs.aio
from dibs.errors import Misuse, NotAcquired


class Account(NamedTuple):
    id: int
    tags: dict[str, str]


@pytest.fixture
def blocking(tmp_path: Any) -> Iterator[dibs.Client]:
    with dibs.connect(f"memory:{tmp_path.name}") as client:
        yield client


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"memory:{tmp_path.name}"


def names(client: dibs.Client) -> list[str]:
    return [holder.name for holder in client.holders()]


def test_a_decorated_function_runs_under_its_lock(blocking: dibs.Client) -> None:
    @blocking.locked("report", note="nightly")
    def report(day: int) -> tuple[int, list[str]]:
        """Make it."""
        return day, names(blocking)

    assert report(3) == (3, ["report"])
    assert names(blocking) == []
    assert (report.__name__, report.__doc__) == ("report", "Make it.")


@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [
        ((1,), {}, "1/today/7/x"),
        ((1, "monday"), {}, "1/monday/7/x"),
        ((1,), {"day": "friday"}, "1/friday/7/x"),
    ],
)
def test_names_come_from_arguments_defaults_and_their_parts(
    blocking: dibs.Client, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    @blocking.locked("{number}/{day}/{account.id}/{account.tags[kind]}")
    def work(number: int, day: str = "today", account: Account = Account(7, {"kind": "x"})) -> list[str]:  # noqa: B008
        return names(blocking)

    assert work(*args, **kwargs) == [name]


def test_a_method_is_named_from_its_object(blocking: dibs.Client) -> None:
    class Shop:
        id = 5

        @blocking.locked("shop:{self.id}")
        def count(self) -> list[str]:
            return names(blocking)

    assert Shop().count() == ["shop:5"]


def test_braces_are_written_twice(blocking: dibs.Client) -> None:
    @blocking.locked("{{{number}}}")
    def work(number: int) -> list[str]:
        return names(blocking)

    assert work(1) == ["{1}"]


def test_a_function_that_asks_for_its_lease_gets_it(blocking: dibs.Client) -> None:
    @blocking.locked("a")
    def with_lease(*, lease: dibs.Lease | None = None) -> int:
        assert lease is not None
        lease.check()
        return lease.fence

    @blocking.locked("a")
    def without_a_default(*, lease: dibs.Lease) -> int:
        return lease.fence

    @blocking.locked("a")
    def with_a_lease_of_its_own(lease: str) -> str:
        return lease

    assert with_lease() > 0
    assert without_a_default() > 0  # type: ignore[call-arg]  # it comes from the decorator
    assert with_a_lease_of_its_own("flat") == "flat"


def test_a_function_whose_lock_is_taken_does_not_run(blocking: dibs.Client, url: str) -> None:
    ran = []

    @blocking.locked("a", timeout=0)
    def work() -> None:
        ran.append(1)

    with dibs.connect(url) as other:
        lease = other.lock("a").acquire()
        with pytest.raises(NotAcquired):
            work()
        lease.release()
    assert ran == []


def test_an_error_of_the_function_frees_the_lock(blocking: dibs.Client) -> None:
    @blocking.locked("a")
    def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert names(blocking) == []


@pytest.mark.parametrize("decorator", ["locked", "idempotent"])
def test_a_decorator_without_brackets_says_that_it_needs_a_name(decorator: str, blocking: dibs.Client) -> None:
    with pytest.raises(dibs.Misuse, match="takes its name in brackets"):
        getattr(blocking, decorator)(lambda: None)


def test_an_argument_that_makes_no_name_is_misuse(blocking: dibs.Client) -> None:
    @blocking.locked("{name}")
    def work(name: str) -> None:
        pytest.fail("it ran without a lock")

    with pytest.raises(Misuse, match="is not empty"):
        work("")


def test_wrong_arguments_are_the_same_error_as_without_the_decorator(blocking: dibs.Client) -> None:
    @blocking.locked("{name}")
    def work(name: str) -> None:
        pytest.fail("it ran with wrong arguments")

    with pytest.raises(TypeError, match="missing a required argument: 'name'"):
        work()  # type: ignore[call-arg]


async def nothing(day: int = 0) -> None: ...


def days() -> Iterator[int]:
    yield 1


async def async_days() -> AsyncIterator[int]:
    yield 1


def plain(day: int = 0) -> None: ...


class AsyncObject:
    async def __call__(self, day: int = 0) -> None: ...


def name_of(func: Any) -> str:
    """Its name, without the address that `repr` has: a test is called the same in every run."""
    return str(getattr(func, "__name__", type(func).__name__))


@pytest.mark.parametrize("func", [nothing, async_days, days, functools.partial(nothing, 3), AsyncObject()], ids=name_of)
def test_the_blocking_decorator_refuses_what_runs_after_the_call(blocking: dibs.Client, func: Any) -> None:
    with pytest.raises(Misuse):
        blocking.locked("a")(func)


@pytest.mark.parametrize("func", [plain, days, async_days], ids=name_of)
def test_the_async_decorator_refuses_what_is_not_async(url: str, func: Any) -> None:
    with pytest.raises(Misuse):
        dibs.aio.connect(url).locked("a")(func)


@pytest.mark.parametrize("template", ["{month}", "{0}", "{}", "{day.x} {month}", "{day:{width}}", "{", "}", "{day!x}"])
def test_a_template_that_cannot_work_is_refused_where_it_is_written(
    blocking: dibs.Client, url: str, template: str
) -> None:
    with pytest.raises(Misuse):
        blocking.locked(template)(plain)
    with pytest.raises(Misuse):
        dibs.aio.connect(url).locked(template)(nothing)


def test_bad_options_are_refused_where_they_are_written(blocking: dibs.Client, url: str) -> None:
    for make in (blocking.locked, dibs.aio.connect(url).locked):
        with pytest.raises(Misuse, match="ttl=0"):
            make("a", ttl=0)
    with pytest.raises(Misuse, match="ttl=0"):
        dibs.aio.locked("a", ttl=0)


def test_an_async_function_runs_under_its_lock(url: str) -> None:
    async def main() -> tuple[int, list[str]]:
        async with dibs.aio.connect(url) as client:

            @client.locked("report:{day}")
            async def report(day: int, *, lease: dibs.aio.Lease | None = None) -> tuple[int, list[str]]:
                assert lease is not None
                lease.check()
                return day, [holder.name for holder in await client.holders()]

            return await report(day=4)

    assert asyncio.run(main()) == (4, ["report:4"])
