"""What one has, nobody else has; who asked first gets it first; nothing is lost with whoever gave up."""

from __future__ import annotations

import asyncio

from dibs.runtime.asyncio import AsyncioRuntime
from dibs.stores.postgres.port.turns import Turns


def in_loop(test: object) -> None:
    async def main() -> None:
        runtime = AsyncioRuntime()
        runtime.enter()
        await test(runtime)  # type: ignore[operator]

    asyncio.run(main())


def test_who_asked_first_gets_it_first() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        turns: Turns[str] = Turns(runtime)
        asking = [asyncio.create_task(turns.take(runtime.now() + 5)) for _ in range(3)]
        await asyncio.sleep(0)
        for thing in "abc":
            turns.give_back(thing)
        assert [await each for each in asking] == ["a", "b", "c"]

    in_loop(main)


def test_who_gave_up_gets_nothing_and_loses_nothing() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        turns: Turns[str] = Turns(runtime)
        assert await turns.take(runtime.now() + 0.01) is None
        cancelled = asyncio.create_task(turns.take(runtime.now() + 5))
        await asyncio.sleep(0)
        turns.give_back("a")  # it is given to the one that is cancelled just now
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert await turns.take(runtime.now()) == "a"

    in_loop(main)


def test_a_new_one_is_made_only_if_none_is_free() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        turns: Turns[str] = Turns(runtime)
        assert await turns.take(runtime.now() + 5, instead=lambda: True) is None
        turns.give_back("a")
        assert await turns.take(runtime.now() + 5, instead=lambda: True) == "a"

    in_loop(main)
