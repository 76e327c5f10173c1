"""A loss cancels the body of its block, and nothing else."""

from __future__ import annotations

import asyncio
import time

import pytest

import dibs.aio
from dibs.errors import LeaseLost


def test_a_body_that_finds_the_loss_itself_leaves_no_cancel_behind() -> None:
    async def scene() -> None:
        async with dibs.aio.connect("memory:interrupt") as client:
            with pytest.raises(LeaseLost):
                async with client.lock("a", ttl=0.1) as lease:
                    time.sleep(0.15)
                    lease.check()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0.01)  # a cancel that was left behind would come out here

    asyncio.run(scene())


def test_a_body_that_found_the_loss_and_goes_on_is_cancelled_at_its_next_await() -> None:
    async def scene() -> None:
        async with dibs.aio.connect("memory:interrupt") as client:
            with pytest.raises(LeaseLost):
                async with client.lock("b", ttl=0.1) as lease:
                    time.sleep(0.15)
                    assert lease.lost
                    await asyncio.sleep(30)
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scene(), 10))
