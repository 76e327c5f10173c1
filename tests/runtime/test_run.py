"""A coroutine that never suspends is a plain call."""

from __future__ import annotations

import asyncio

import pytest

from dibs.runtime import run


async def answer(value: int) -> int:
    return value


async def fails() -> None:
    raise ValueError("broken")


def test_it_returns_what_the_coroutine_returns() -> None:
    assert run(answer(3)) == 3


def test_it_raises_what_the_coroutine_raises() -> None:
    with pytest.raises(ValueError, match="broken") as raised:
        run(fails())
    assert raised.traceback[-1].name == "fails"


def test_a_step_that_suspends_is_an_error_and_is_unwound() -> None:
    ended = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(1)

    with pytest.raises(RuntimeError, match="suspended in blocking code"):
        run(suspends())
    assert ended == [1]


def test_it_works_inside_a_running_loop() -> None:
    async def main() -> int:
        return run(answer(4))

    assert asyncio.run(main()) == 4
