"""The runtime of async code: events that threads may set, shields that survive any number of cancels."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dibs.errors import Misuse
from dibs.runtime.asyncio import AsyncioRuntime


def with_runtime(main: Callable[[AsyncioRuntime], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        runtime = AsyncioRuntime()
        runtime.enter()
        await main(runtime)

    asyncio.run(inside(), debug=True)


def test_an_event_may_be_set_from_a_thread() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        event = runtime.event()
        thread = threading.Thread(target=event.set)
        thread.start()
        assert await event.wait(5)
        thread.join()

    with_runtime(main)


def test_a_wait_ends_with_its_timeout() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        event = runtime.event()
        assert not await event.wait(0.01)
        assert not await event.wait(0)
        assert not event.is_set()

    with_runtime(main)


def test_an_event_may_be_set_after_its_loop_has_ended() -> None:
    events = []

    async def main(runtime: AsyncioRuntime) -> None:
        events.append(runtime.event())

    with_runtime(main)
    events[0].set()


@pytest.mark.parametrize("cancels", [1, 3])
def test_what_is_shielded_is_finished_and_the_cancel_comes_out(cancels: int) -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        done = []

        async def work() -> None:
            await asyncio.sleep(0.02)
            done.append(1)

        async def caller() -> None:
            await runtime.shielded(work())

        task = asyncio.create_task(caller())
        for _ in range(cancels):
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == [1]

    with_runtime(main)


def test_what_is_shielded_may_fail() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        async def work() -> None:
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await runtime.shielded(work())

    with_runtime(main)


def test_a_second_loop_is_refused() -> None:
    runtime = AsyncioRuntime()

    async def main() -> None:
        runtime.enter()
        runtime.enter()

    asyncio.run(main())
    with pytest.raises(Misuse):
        asyncio.run(main())


def test_a_pipe_is_waited_for_in_the_loop() -> None:
    async def main(runtime: AsyncioRuntime) -> None:
        reading, writing = os.pipe()
        try:
            assert not await runtime.readable(reading, 0.01)
            os.write(writing, b"x")
            assert await runtime.readable(reading, 5)
        finally:
            os.close(reading)
            os.close(writing)

    with_runtime(main)
