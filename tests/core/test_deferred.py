"""Work that comes later than the call is refused: where it is decorated if that is seen, else where it is returned."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.asgi import IdempotencyKeyMiddleware, anyone
from dibs.core.deferred import done
from dibs.errors import Misuse
from dibs.guards import FenceMiddleware, MemoryGuard
from dibs.optimistic import retry

ran: list[str] = []
"""What must stay empty: the bodies of work that would come later."""


async def coroutine(*_: Any) -> None:
    ran.append("coroutine")


def generator(*_: Any) -> Iterator[int]:
    ran.append("generator")
    yield 1


async def async_generator(*_: Any) -> AsyncIterator[int]:
    ran.append("async generator")
    yield 1


class Object:
    """Its instances can be called, and what that gives is async or a generator."""

    async def __call__(self, *_: Any) -> None:
        ran.append("object")

    async def method(self, *_: Any) -> None:
        ran.append("method")

    @classmethod
    def generate(cls, *_: Any) -> Iterator[int]:
        ran.append("class method")
        yield 1


class GeneratorObject:
    def __call__(self, *_: Any) -> Iterator[int]:
        ran.append("generator object")
        yield 1


class CanBeAwaited:
    def __await__(self) -> Iterator[None]:
        ran.append("awaitable")
        yield


ASYNC = [coroutine, functools.partial(coroutine, 1), Object(), Object().method, functools.partial(Object(), 1)]
LATER_IN_BOTH = [
    *(generator, async_generator, functools.partial(generator, 1), Object.generate, GeneratorObject()),
    *(contextlib.contextmanager(generator), contextlib.asynccontextmanager(async_generator)),
    functools.partial(contextlib.contextmanager(generator), 1),
]

RETURNED: list[Callable[[], Any]] = [
    *(coroutine, generator, async_generator, CanBeAwaited),
    *(contextlib.contextmanager(generator), contextlib.asynccontextmanager(async_generator)),
    *(lambda: map(ran.append, "x"), lambda: filter(ran.append, "x"), lambda: zip(generator(), "x", strict=False)),
    *(
        lambda: enumerate(generator()),
        lambda: itertools.starmap(ran.append, ["x"]),
        lambda: itertools.chain(generator()),
    ),
]

DECORATORS: dict[str, Callable[[Any], Any]] = {
    "locked": lambda client: client.locked("work"),
    "once": lambda client: client.once("work", slot="1"),
    "idempotent": lambda client: client.idempotent("work"),
    "retry": lambda client: retry(),
    "election.run": lambda client: lambda func: lambda: client.election("work").run(func),
}
"""All that take a function, of a client of either colour."""


@pytest.fixture(autouse=True)
def nothing_runs_later() -> Iterator[None]:
    """Nor is a coroutine left over, of which Python would say that it was never awaited."""
    ran.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert ran == []


def kind_of(func: Any) -> str:
    return str(getattr(func, "__qualname__", type(func).__name__))


@pytest.mark.parametrize("func", [*ASYNC, *LATER_IN_BOTH], ids=kind_of)
@pytest.mark.parametrize("what", [what for what in DECORATORS if what != "retry"])
def test_blocking_code_refuses_it_where_it_is_given(tmp_path: Any, what: str, func: Any) -> None:
    with dibs.connect(f"memory:{tmp_path.name}") as client, pytest.raises(Misuse, match=r"is async|runs only after"):
        decorated = DECORATORS[what](client)(func)
        assert what == "election.run"
        decorated()


@pytest.mark.parametrize("func", LATER_IN_BOTH, ids=kind_of)
@pytest.mark.parametrize("what", DECORATORS)
def test_async_code_refuses_it_where_it_is_given(tmp_path: Any, what: str, func: Any) -> None:
    client = dibs.aio.connect(f"memory:{tmp_path.name}")
    with pytest.raises(Misuse, match=r"is not an async def|runs only after"):
        decorated = DECORATORS[what](client)(func)
        assert what == "election.run"
        asyncio.run(decorated())


@pytest.mark.parametrize("make", RETURNED, ids=kind_of)
@pytest.mark.parametrize("what", DECORATORS)
def test_blocking_code_refuses_it_where_it_is_returned(tmp_path: Any, what: str, make: Callable[[], Any]) -> None:
    """What it held is given back, and no success is written down."""

    def work(*_: Any) -> Any:
        return make()

    with dibs.connect(f"memory:{tmp_path.name}") as client:
        with pytest.raises(Misuse, match=r"work returned .*, whose work would begin only when it is .* after the call"):
            DECORATORS[what](client)(work)()
        refused(client, what)


@pytest.mark.parametrize("make", RETURNED, ids=kind_of)
@pytest.mark.parametrize("what", DECORATORS)
def test_async_code_refuses_it_where_it_is_returned(tmp_path: Any, what: str, make: Callable[[], Any]) -> None:
    async def work(*_: Any) -> Any:
        return make()

    async def main() -> None:
        async with dibs.aio.connect(f"memory:{tmp_path.name}") as client:
            with pytest.raises(
                Misuse, match=r"work returned .*, whose work would begin only when it is .* after the call"
            ):
                await DECORATORS[what](client)(work)()

    asyncio.run(main())
    with dibs.connect(f"memory:{tmp_path.name}") as client:
        refused(client, what)


def refused(client: dibs.Client, what: str) -> None:
    """Nothing is held of *what*, and nothing is known to have gone well."""
    assert client.holders() == []
    if what == "idempotent":
        with client.idempotent("work") as call:
            assert not call.replayed
    if what == "once":
        assert [past.outcome for past in client.once("work", slot="1").history()] == ["failed"]


@pytest.mark.parametrize("make", [lambda: None, generator, contextlib.contextmanager(generator)], ids=kind_of)
def test_work_of_an_async_leader_has_to_be_awaited(tmp_path: Any, make: Callable[[], Any]) -> None:
    """A plain function may return what is awaited, as a lambda does; one that returns anything else is no work."""
    led, stop = list[int](), list[Callable[[], None]]()

    async def lead(term: dibs.aio.Term, number: int) -> None:
        led.append(number)
        stop[0]()

    async def main() -> None:
        async with dibs.aio.connect(f"memory:{tmp_path.name}") as client:
            election = client.election("work")
            with pytest.raises(Misuse, match="which cannot be awaited"):
                await election.run(lambda term: make())
            assert await client.holders() == []
            stop.append(election.stop)
            await election.run(lambda term: lead(term, 7))

    asyncio.run(main())
    assert led == [7]


def test_a_task_that_is_returned_is_cancelled(tmp_path: Any) -> None:
    """It would run in the loop's next turn, when nothing is held."""

    async def main() -> None:
        async with dibs.aio.connect(f"memory:{tmp_path.name}") as client:

            @client.locked("work")
            async def work() -> asyncio.Task[None]:
                return asyncio.create_task(coroutine())

            with pytest.raises(Misuse, match="work returned a Task"):
                await work()
            await asyncio.sleep(0)

    asyncio.run(main())


def test_what_is_over_may_be_returned() -> None:
    """Results that can be iterated or awaited, and have nothing left to do."""

    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_result(3)
        other = Future[int]()
        for result in (future, other, None, 3, [1], iter([1]), range(3), threading.Lock(), {"a": 1}, (1, 2)):
            assert done(result, coroutine) is result

    asyncio.run(main())


def test_a_function_that_awaits_or_iterates_by_itself_is_taken(tmp_path: Any) -> None:
    """Also if it says by ``__wrapped__`` that it is made of a coroutine or a generator."""

    def to_its_end(func: Callable[[], Awaitable[int]]) -> Callable[[], int]:
        @functools.wraps(func)
        def run() -> int:
            async def main() -> int:
                return await func()

            return asyncio.run(main())

        return run

    async def three() -> int:
        return 3

    @functools.wraps(generator)
    def whole() -> list[int]:
        return [1]

    with dibs.connect(f"memory:{tmp_path.name}") as client:
        assert client.locked("work")(to_its_end(three))() == 3
        assert client.locked("work")(whole)() == [1]


def test_a_function_whose_wrapper_is_plain_and_returns_a_coroutine_is_refused_at_the_result(tmp_path: Any) -> None:
    @functools.wraps(coroutine)
    def wrapper() -> Awaitable[None]:
        return coroutine()

    with dibs.connect(f"memory:{tmp_path.name}") as client, pytest.raises(Misuse, match="returned a coroutine"):
        client.locked("work")(wrapper)()


@pytest.mark.parametrize("kind", [staticmethod, classmethod, property])
def test_decorators_of_a_class_belong_above_ours(tmp_path: Any, kind: Any) -> None:
    def work(*_: Any) -> None:
        """Nothing."""

    with dibs.connect(f"memory:{tmp_path.name}") as client:
        other = dibs.aio.connect(f"memory:{tmp_path.name}")
        for func, each in ((work, client), (coroutine, other)):
            for what in ("locked", "idempotent", "once", "retry"):
                with pytest.raises(Misuse, match=r"above the decorator of dibs|cannot be called"):
                    DECORATORS[what](each)(kind(func))

        class Shop:
            @staticmethod
            @client.locked("static")
            def static(number: int) -> int:
                return number

            @classmethod
            @client.locked("class:{cls.__name__}")
            def of_the_class(cls, number: int) -> int:
                return number

        assert (Shop.static(1), Shop().static(2), Shop.of_the_class(3), Shop().of_the_class(4)) == (1, 2, 3, 4)


def test_an_answer_that_is_needed_at_once_is_not_asked_of_an_async_function(tmp_path: Any) -> None:
    """It would be a coroutine, which is always true: no answer would be kept, or each request would need a key."""
    client, app = dibs.aio.connect(f"memory:{tmp_path.name}"), Object()
    for what in ("scope", "required", "fingerprint", "retryable"):
        with pytest.raises(Misuse, match=f"{what}=coroutine is async"):
            IdempotencyKeyMiddleware(app, client, **{"scope": anyone, what: coroutine})  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="name=coroutine is async"):
        FenceMiddleware(app, MemoryGuard(), name=coroutine)  # type: ignore[arg-type]
    for what in ("dump", "load"):
        with pytest.raises(Misuse, match=f"{what}=coroutine is async"):
            client.idempotent("work", **{what: coroutine})  # type: ignore[arg-type]
