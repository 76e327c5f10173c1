"""A task that is cancelled, at each of its awaits in turn, leaves no lock behind and is really cancelled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest
from lab import NAME, Lab

from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import StoreUnavailable
from dibs.testing.faults import Odds
from dibs.testing.simulation.scheduler import Cancelled

Story: TypeAlias = Callable[[Client], Coroutine[Any, Any, None]]


async def with_block(client: Client) -> None:
    async with client.lock(NAME, ttl=30):
        await client._runtime.sleep(0.5)


async def wait_in_line(client: Client) -> None:
    lease = await client.lock(NAME, ttl=30).acquire(timeout=60)
    try:
        await client._runtime.sleep(0.5)
    finally:
        await lease.release()


async def try_once(client: Client) -> None:
    lease = await client.lock(NAME, ttl=30).try_acquire()
    if lease is not None:
        async with lease:
            await lease.renew()


async def under_a_lossy_network(client: Client) -> None:
    async with client.lock(NAME, ttl=30, timeout=60) as lease:
        await lease.renew()


FAULTS: dict[Story, Odds] = {
    with_block: Odds(),
    wait_in_line: Odds(),
    try_once: Odds(),
    under_a_lossy_network: Odds(lose_reply=0.2),
}


@pytest.mark.parametrize("late", [False, True], ids=["before the answer", "with the answer"])
@pytest.mark.parametrize("story", FAULTS)
def test_a_cancel_at_any_await_leaks_nothing_and_comes_out(story: Story, late: bool) -> None:
    number = 0
    while True:
        number += 1
        lab = Lab(number, FAULTS[story])
        client = lab.client()
        if story is wait_in_line:
            occupy(lab, 1.2)

        async def main(client: Client = client) -> None:
            with contextlib.suppress(StoreUnavailable):
                await story(client)

        task = lab.start(main())
        task.cancel_at(number, late=late)
        lab.world.run()
        if task.awaits < number:
            break  # it was over before its await of this number
        assert isinstance(task.error, Cancelled), f"cancelled at its await {number}\n{lab.world.story()}"
        lab.network.heal()
        lab.world.run_for(4)
        assert not lab.holder(), f"cancelled at its await {number}\n{lab.world.story()}"
        assert not lab.waiting(), f"cancelled at its await {number}\n{lab.world.story()}"
        lab.world.run_for(11)
        assert not lab.world.tasks, "the keeper has found that nothing is left to do"
        lab.world.close()
    assert number > 3, "there were awaits to cancel at"


def occupy(lab: Lab, seconds: float) -> None:
    """Let another process hold the lock for *seconds*."""
    other = lab.client("occupant")

    async def hold() -> None:
        async with other.lock(NAME, ttl=30):
            await other._runtime.sleep(seconds)

    lab.start(hold(), "occupant")
    lab.world.run_for(0.01)


@pytest.mark.parametrize("late", [False, True])
def test_after_a_cancelled_release_a_second_one_works(late: bool) -> None:
    for number in range(1, 6):
        lab = Lab(number)
        client = lab.client()
        leases: list[Lease] = []

        async def take(client: Client = client, leases: list[Lease] = leases) -> None:
            leases.append(await client.lock(NAME, ttl=30).acquire())

        lab.run(take())
        first = lab.start(leases[0].release())
        first.cancel_at(number, late=late)
        lab.world.run()
        lab.run(leases[0].release())
        assert not lab.holder()
        lab.world.close()


def test_a_cancel_while_giving_back_waits_for_the_giving_back() -> None:
    lab = Lab()
    client = lab.client()

    async def main() -> None:
        async with client.lock(NAME, ttl=30):
            await client._runtime.sleep(1)

    task = lab.start(main())
    for moment in (0.5, 0.5001, 0.5002, 0.5003):
        lab.world.call_later(moment, task.cancel)
    lab.world.run()
    assert isinstance(task.error, Cancelled)
    assert not lab.holder()
    lab.world.close()


def test_two_cancels_before_the_answer_still_give_back() -> None:
    lab = Lab(odds=Odds(delay_reply=1.0, longest=0.5))
    client = lab.client()

    async def main() -> None:
        await client.lock(NAME, ttl=30).acquire()

    task = lab.start(main())
    for moment in (0.002, 0.003, 0.004):
        lab.world.call_later(moment, task.cancel)
    lab.world.run()
    lab.world.run_for(2)
    assert isinstance(task.error, Cancelled)
    assert not lab.holder()
    lab.world.close()
