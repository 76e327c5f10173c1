"""The async API in asyncio: cancels at any await, losses that cancel the body, loops that block, loops that change."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import dibs.aio as dibs
from dibs.aio import LeaseLost, Misuse, NotAcquired

SOON = 10.0


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/dibs.db"


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run *test* with a client, in a loop of its own, and fail if it leaves a task behind."""

    @functools.wraps(test)
    def run_it(url: str) -> None:
        async def main() -> None:
            async with dibs.connect(url) as client, dibs.connect(url) as other:
                await test(client, other)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(main())

    del run_it.__wrapped__  # pytest would look at its parameters
    return run_it


async def evict(other: dibs.Client, lease: dibs.Lease) -> None:
    assert await other.evict(lease.name, fence=lease.fence)


async def names(client: dibs.Client) -> list[str]:
    return [holder.name for holder in await client.holders()]


async def until(truth: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON):
        while not await truth():
            await asyncio.sleep(0.002)


@in_a_loop
async def test_a_loss_cancels_the_body_and_is_what_comes_out(client: dibs.Client, other: dibs.Client) -> None:
    seen: BaseException | None = None
    with pytest.raises(LeaseLost, match="evicted"):
        async with client.lock("a", ttl=1.2) as lease:
            await evict(other, lease)
            try:
                await asyncio.sleep(SOON)
            except asyncio.CancelledError as cancel:
                seen = cancel
                raise
    assert isinstance(seen, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # the task can go on


@in_a_loop
async def test_on_lost_flag_lets_the_body_run_to_its_end(client: dibs.Client, other: dibs.Client) -> None:
    ended = False
    with pytest.raises(LeaseLost):
        async with client.lock("a", ttl=1.2, on_lost="flag") as lease:
            await evict(other, lease)
            assert await lease.lost.wait(SOON)
            await asyncio.sleep(0.01)
            ended = True
    assert ended


@in_a_loop
async def test_a_body_that_answers_the_cancel_with_its_own_error_keeps_it(
    client: dibs.Client, other: dibs.Client
) -> None:
    with pytest.raises(ValueError, match="half done") as raised:
        async with client.lock("a", ttl=1.2) as lease:
            await evict(other, lease)
            try:
                await asyncio.sleep(SOON)
            finally:
                raise ValueError("half done")
    assert any("was lost" in note for note in raised.value.__notes__)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@in_a_loop
async def test_a_body_that_ignores_the_cancel_is_told_at_the_end(client: dibs.Client, other: dibs.Client) -> None:
    with pytest.raises(LeaseLost):
        async with client.lock("a", ttl=1.2) as lease:
            await evict(other, lease)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(SOON)


@in_a_loop
async def test_a_cancel_from_outside_is_not_taken_for_ours(client: dibs.Client, other: dibs.Client) -> None:
    async def body() -> None:
        async with client.lock("a"):
            await asyncio.sleep(SOON)

    task = asyncio.create_task(body())
    await until(lambda: is_held(other, "a"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await names(other) == []


@in_a_loop
async def test_a_cancel_from_outside_goes_before_a_loss(client: dibs.Client, other: dibs.Client) -> None:
    async def body() -> None:
        async with client.lock("a", ttl=0.2) as lease:
            await evict(other, lease)
            try:
                await asyncio.sleep(SOON)
            finally:
                task.cancel()  # it comes while ours is on its way out

    task = asyncio.create_task(body())
    await asyncio.wait([task])
    assert task.cancelled()


@in_a_loop
async def test_an_outer_timeout_still_ends_the_body(client: dibs.Client, other: dibs.Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), client.lock("a"):
            await asyncio.sleep(SOON)
    assert await names(other) == []


@in_a_loop
async def test_an_inner_timeout_still_ends_its_part(client: dibs.Client, other: dibs.Client) -> None:
    async with client.lock("a") as lease:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(SOON)
        lease.check()
    assert await names(other) == []


@in_a_loop
async def test_a_loss_inside_an_outer_timeout_is_a_loss(client: dibs.Client, other: dibs.Client) -> None:
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(SOON), client.lock("a", ttl=1.2) as lease:
            await evict(other, lease)
            await asyncio.sleep(SOON)
    await asyncio.sleep(0)


@in_a_loop
async def test_a_loss_ends_the_tasks_of_a_group_inside(client: dibs.Client, other: dibs.Client) -> None:
    ended = []

    async def share() -> None:
        try:
            await asyncio.sleep(SOON)
        finally:
            ended.append(1)

    with pytest.raises(LeaseLost):
        async with client.lock("a", ttl=1.2) as lease, asyncio.TaskGroup() as group:
            group.create_task(share())
            group.create_task(share())
            await evict(other, lease)
    assert ended == [1, 1]


@in_a_loop
async def test_a_loss_in_a_task_of_a_group_is_an_error_of_the_group(client: dibs.Client, other: dibs.Client) -> None:
    async def share() -> None:
        async with client.lock("a", ttl=1.2) as lease:
            await evict(other, lease)
            await asyncio.sleep(SOON)

    async def sibling() -> None:
        await asyncio.sleep(SOON)

    with pytest.raises(ExceptionGroup) as group_error:
        async with asyncio.TaskGroup() as group:
            group.create_task(share())
            group.create_task(sibling())
    assert [type(error) for error in group_error.value.exceptions] == [LeaseLost]


@in_a_loop
async def test_the_loss_of_an_outer_lock_ends_the_block_inside(client: dibs.Client, other: dibs.Client) -> None:
    with pytest.raises(LeaseLost) as lost:
        async with client.lock("outer", ttl=1.2) as outer, client.lock("inner"):
            await evict(other, outer)
            await asyncio.sleep(SOON)
    assert lost.value.name == "outer"
    assert await names(other) == []


@in_a_loop
async def test_the_loss_of_both_locks_is_told_by_the_outer(client: dibs.Client, other: dibs.Client) -> None:
    with pytest.raises(LeaseLost):
        async with client.lock("outer", ttl=0.2) as outer, client.lock("inner", ttl=0.2) as inner:
            await evict(other, outer)
            await evict(other, inner)
            await asyncio.sleep(SOON)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@in_a_loop
async def test_a_loop_that_was_blocked_learns_of_the_loss_at_the_first_chance(
    client: dibs.Client, other: dibs.Client
) -> None:
    came_back = False
    with pytest.raises(LeaseLost, match="expired"):
        async with client.lock("a", ttl=0.2) as lease:
            time.sleep(0.4)
            assert lease.lost  # by the clock, before anything else could run
            with pytest.raises(LeaseLost):
                lease.check()
            await asyncio.sleep(0.2)
            came_back = True
    assert not came_back


@in_a_loop
async def test_a_renewal_after_a_blocked_loop_revives_nothing(client: dibs.Client, other: dibs.Client) -> None:
    lease = await client.lock("a", ttl=0.2).acquire()
    time.sleep(0.4)
    await asyncio.sleep(0.15)
    assert lease.lost
    theirs = await other.lock("a").acquire(timeout=0)
    with pytest.raises(LeaseLost):
        await lease.release()
    theirs.check()
    await theirs.release()


@in_a_loop
async def test_a_task_waits_for_a_lock_that_another_task_holds(client: dibs.Client, other: dibs.Client) -> None:
    lease = await client.lock("a").acquire()
    waiter = asyncio.create_task(client.lock("a").acquire())
    await asyncio.sleep(0.05)
    assert not waiter.done()
    with pytest.raises(Misuse, match="already holds"):
        await client.lock("a").acquire()
    await lease.release()
    await (await asyncio.wait_for(waiter, SOON)).release()


@in_a_loop
async def test_a_block_may_be_entered_and_left_in_different_tasks(client: dibs.Client, other: dibs.Client) -> None:
    """As async fixtures are: the task that entered has ended, and is not cancelled any more."""
    lock = client.lock("a", ttl=0.8)
    lease = await asyncio.create_task(lock.__aenter__())
    assert await names(other) == ["a"]
    await asyncio.sleep(0.9)
    lease.check()
    await asyncio.create_task(lock.__aexit__(None, None, None))
    assert await names(other) == []


@in_a_loop
async def test_a_loss_after_the_entering_task_has_ended_is_told_at_the_end(
    client: dibs.Client, other: dibs.Client
) -> None:
    lock = client.lock("a", ttl=0.2)
    lease = await asyncio.create_task(lock.__aenter__())
    await evict(other, lease)
    assert await lease.lost.wait(SOON)
    with pytest.raises(LeaseLost):
        await asyncio.create_task(lock.__aexit__(None, None, None))


@in_a_loop
async def test_an_async_generator_that_is_dropped_frees_the_lock(client: dibs.Client, other: dibs.Client) -> None:
    async def rows() -> AsyncIterator[int]:
        async with client.lock("a"):
            yield 1

    reading = rows()
    assert await anext(reading) == 1
    assert await names(other) == ["a"]
    del reading
    gc.collect()
    await until(lambda: is_free(other, "a"))


@in_a_loop
async def test_a_coroutine_that_is_closed_frees_the_lock(client: dibs.Client, other: dibs.Client) -> None:
    class Pause:
        def __await__(self) -> Any:
            yield

    entered: list[bool] = []

    async def body() -> None:
        async with client.lock("a"):
            entered.append(True)
            await Pause()

    steps = body()
    while True:  # what a loop does, so that it can be closed as no loop would
        future = steps.send(None)
        if entered:
            break
        if future is not None:
            future._asyncio_future_blocking = False
            await asyncio.wait([future])
        else:
            await asyncio.sleep(0)
    steps.close()
    await until(lambda: is_free(other, "a"))


@in_a_loop
async def test_many_cancels_in_a_row_cannot_stop_a_release(client: dibs.Client, other: dibs.Client) -> None:
    async def block() -> None:
        async with client.lock("a"):
            pass

    for _ in range(20):
        task = asyncio.create_task(block())
        for _ in range(6):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        await until(lambda: is_free(other, "a"))


@in_a_loop
async def test_a_refused_block_does_not_run_its_body(client: dibs.Client, other: dibs.Client) -> None:
    ran = False
    async with other.lock("a", note="the other"):
        with pytest.raises(NotAcquired, match="the other"):
            async with client.lock("a", timeout=0.3):
                ran = True
    assert not ran


@in_a_loop
async def test_a_thousand_leases_cost_one_task(client: dibs.Client, other: dibs.Client) -> None:
    before = len(asyncio.all_tasks())
    leases = [await client.lock(f"lock {n}").acquire(timeout=0) for n in range(1000)]
    assert len(asyncio.all_tasks()) <= before + 1
    for lease in leases:
        await lease.release()
    assert await names(other) == []


def test_a_second_event_loop_is_misuse(url: str) -> None:
    client = dibs.connect(url)

    async def first() -> None:
        async with client.lock("a"):
            pass

    asyncio.run(first())
    with pytest.raises(Misuse, match="another event loop; connect one in each loop"):
        asyncio.run(first())


def test_a_loop_that_ends_while_a_lock_is_held_says_nothing(url: str, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> dibs.Lease:
        client = dibs.connect(url)
        return await client.lock("a", ttl=0.2).acquire()

    lease = asyncio.run(main())
    time.sleep(0.25)
    assert lease.lost
    del lease
    gc.collect()
    assert capfd.readouterr().err == ""


def test_the_default_client_needs_a_running_loop() -> None:
    with pytest.raises(Misuse, match=r"needs a running event loop of asyncio; in blocking code use dibs$"):
        dibs.lock("a")


def test_each_loop_has_a_default_client(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", url)

    @dibs.locked("report:{day}")
    async def report(day: int) -> int:
        return day

    async def main() -> int:
        async with dibs.lock("a"):
            return await report(3)

    assert asyncio.run(main()) == 3
    assert asyncio.run(main()) == 3


async def is_held(client: dibs.Client, name: str) -> bool:
    return name in await names(client)


async def is_free(client: dibs.Client, name: str) -> bool:
    return name not in await names(client)


def test_a_client_is_closed_in_its_own_loop_only(url: str) -> None:
    client = dibs.connect(url)

    async def use() -> None:
        async with client.lock("a"):
            pass

    asyncio.run(use())
    with pytest.raises(Misuse, match="another event loop"):
        asyncio.run(client.close())


def test_event_loops_that_ended_leave_no_threads_of_their_default_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", f"sqlite://{tmp_path}/locks.db")

    async def job() -> None:
        async with dibs.lock("a"):
            pass

    before = threading.active_count()
    for _ in range(10):
        asyncio.run(job())
    gc.collect()
    until = time.monotonic() + 10
    while threading.active_count() > before + 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before + 2  # the last one's, and one that is about to end
