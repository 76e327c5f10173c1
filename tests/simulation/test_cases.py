"""Cases of real lock libraries, each replayed with virtual time and one fault at the worst moment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from lab import NAME, Lab

from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import (
    LeaseLost,
    LossReason,
    Misuse,
    NotAcquired,
    OutcomeUnknown,
    StoreUnavailable,
)
from dibs.holder import here
from dibs.stores.store import Ask
from dibs.testing.faults import Odds


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.world.close()


@pytest.fixture
def client(lab: Lab) -> Client:
    return lab.client()


# --- answers that never come -----------------------------------------------------------------------------------


def test_a_lost_answer_to_acquire_is_resolved_by_asking_again(lab: Lab, client: Client) -> None:
    async def main() -> None:
        with lab.failing(lose_reply=1.0):
            lab.world.call_later(0.5, lab.network.heal)
            lease = await client.lock(NAME, ttl=2, timeout=10).acquire()
        assert lease.fence == lab.holder()
        assert len(lab.tokens()) == 1, "one grant, under one token"

    lab.run(main())


def test_a_single_try_whose_answer_is_lost_is_unknown_and_given_back(lab: Lab, client: Client) -> None:
    async def main() -> None:
        with lab.failing(lose_reply=1.0), pytest.raises(OutcomeUnknown):
            await client.lock(NAME, ttl=10).acquire(timeout=0)
        assert lab.holder(), "it had been granted"
        await client._runtime.sleep(0.5)
        assert not lab.holder()

    lab.run(main())


def test_a_lost_answer_to_release_keeps_the_error_of_the_body(lab: Lab, client: Client) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="mine") as raised:
            async with client.lock(NAME, ttl=10):
                lab.server.hangs = True
                raise ValueError("mine")
        assert "retried in the background" in raised.value.__notes__[0]

    lab.run(main())


def test_a_release_that_was_not_delivered_is_retried_until_it_is(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=30).acquire()
        lab.server.refuses = True
        with pytest.raises(StoreUnavailable):
            await lease.release()
        lab.later(12, refuses=False)
        await client._runtime.sleep(11.9)
        assert lab.holder()
        await client._runtime.sleep(1.5)
        assert not lab.holder()

    lab.run(main())


def test_the_keeper_stops_to_give_back_at_the_end_of_the_lease(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=3).acquire()
        lab.server.refuses = True
        with pytest.raises(StoreUnavailable):
            await lease.release()
        await client._runtime.sleep(6)

    lab.run(main())
    assert not lab.world.tasks, "the keeper has ended"


def test_a_release_can_be_called_again_after_it_failed(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=30).acquire()
        lab.server.refuses = True
        with pytest.raises(StoreUnavailable):
            await lease.release()
        lab.server.refuses = False
        await lease.release()
        assert not lab.holder()

    lab.run(main())


def test_a_renewal_whose_answer_is_lost_does_not_lengthen_the_lease(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=3).acquire()
        until = lease.lost._deadline
        with lab.failing(lose_reply=1.0):
            await lease.lost.wait(10)
        assert lab.sent("renew") >= 2
        assert lease.lost._deadline == until
        assert lease.lost_reason is LossReason.EXPIRED
        assert client._runtime.now() == pytest.approx(until, abs=0.001)

    lab.run(main())


def test_a_waiters_ask_that_was_carried_out_late_gives_a_lease_of_full_length(lab: Lab, client: Client) -> None:
    """Its copy was granted while the waiter slept; the next ask must count from when it is asked, at both ends."""

    async def main() -> None:
        ask = Ask(NAME, "t", 3.0, "", True)
        first = await client._store.grant(ask, 1.0)
        await client._runtime.sleep(2.9)
        again = await client._store.grant(ask, 1.0)
        await client._runtime.sleep(2.9)
        assert first == again
        assert lab.holder()

    lab.run(main())


def test_a_claim_does_not_hold_by_a_grant_that_came_after_it(lab: Lab, client: Client) -> None:
    """A copy of an old ask was granted long after its lease had ended: that is another grant, with another fence."""

    async def main() -> None:
        lease = await client.lock(NAME, ttl=1).acquire()
        text = await lease.detach()
        await client._runtime.sleep(2)
        await client._store.grant(Ask(NAME, lease.token, 1.0, "", False), 1.0)
        with pytest.raises(LeaseLost):
            await client.resume(text)

    lab.run(main())


def test_two_who_keep_one_lease_do_not_shorten_it_for_each_other(lab: Lab, client: Client) -> None:
    """The first is near its max_hold and renews for little; the heir counts on what it was told."""
    heir = lab.client("heir")

    async def inherit(text: str) -> None:
        lease = await heir.resume(text)
        for _ in range(40):
            await heir._runtime.sleep(0.1)
            assert lab.holder() == lease.fence

    async def main() -> None:
        lease = await client.lock(NAME, ttl=3, max_hold=3.5).acquire()
        await client._runtime.sleep(0.8)
        lab.start(inherit(lease.to_str()), "heir")
        await client._runtime.sleep(10)
        assert lease.lost_reason is LossReason.MAX_HOLD

    lab.run(main())


def test_one_who_stood_still_past_its_deadline_does_not_give_back_what_another_has_resumed(
    lab: Lab, client: Client
) -> None:
    """Both keep one lease. Seed 2076662 showed that the next got in while the heir was inside."""
    heir = lab.client("heir")

    async def inherit(text: str) -> None:
        lease = await heir.resume(text)
        for _ in range(60):
            await heir._runtime.sleep(0.1)
            assert lab.holder() == lease.fence
        await lease.release()

    async def main() -> None:
        lease = await client.lock(NAME, ttl=1).acquire()
        task = lab.start(inherit(lease.to_str()), "heir")
        await client._runtime.sleep(0.5)
        lab.processes["p"].pause(1.5)
        await client._runtime.sleep(0.1)
        with pytest.raises(LeaseLost):
            await lease.release()
        while not task.done:
            await client._runtime.sleep(0.1)

    lab.run(main())


def test_an_acquire_that_was_granted_too_late_goes_on_with_its_new_token(lab: Lab, client: Client) -> None:
    """Seed 311 showed a lease that carried the token of the ask before: it could not be renewed or released."""
    other = lab.client("other")

    async def hold() -> None:
        async with other.lock(NAME, ttl=1):
            await other._runtime.sleep(0.5)

    async def main() -> None:
        await client._runtime.sleep(0.1)
        lab.later(0.2, hangs=True)
        lab.later(5.0, hangs=False)
        lease = await client.lock(NAME, ttl=1, timeout=None).acquire()
        await lease.renew()
        await lease.release()
        assert not lab.holder()

    lab.start(hold(), "other")
    lab.run(main())


# --- a request that comes late, a release that races ------------------------------------------------------------


def test_a_renewal_that_is_overtaken_by_the_release_creates_nothing(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=3).acquire()
        with lab.failing(double_late=1.0):
            await lease.renew()
        await lease.release()
        await client._runtime.sleep(6)
        assert lab.sent("renew") == 2
        assert not lab.holder()

    lab.run(main())


def test_a_release_during_a_slow_renewal_is_final(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=3).acquire()
        with lab.failing(delay_reply=1.0, longest=0.5):
            await client._runtime.sleep(1.05)  # the keeper's renewal is on its way
            await lease.release()
        await client._runtime.sleep(5)
        assert not lab.holder()
        assert not lease.lost

    lab.run(main())


def test_an_ask_that_comes_after_the_release_ends_by_itself(lab: Lab, client: Client) -> None:
    async def main() -> None:
        with lab.failing(double_late=1.0, longest=3.0):
            lease = await client.lock(NAME, ttl=2).acquire()
        await lease.release()
        await client._runtime.sleep(3.1)
        began = client._runtime.now()
        again = await client.lock(NAME, ttl=2, timeout=5).acquire()
        assert client._runtime.now() - began < 2.2
        assert again.fence > lease.fence
        await again.release()

    lab.run(main())
    assert lab.sent("grant") >= 3, "the ask was carried out again"


@pytest.mark.parametrize("shared", [False, True])
def test_an_ask_that_was_given_back_takes_nothing_when_it_comes_at_last(lab: Lab, client: Client, shared: bool) -> None:
    """Its connection is closed and its client has gone on; the kernel delivers it all the same."""

    async def main() -> None:
        with lab.failing(stuck=1.0), pytest.raises(OutcomeUnknown):
            await client.lock(NAME, ttl=60, shared=shared).acquire(timeout=0.3)
        await client._runtime.sleep(40)
        assert not lab.holder()

    lab.run(main())
    assert [call[1] for call in lab.network.calls][-1] == "grant", "it came last"


def test_what_may_still_come_is_given_back_also_after_an_outage_that_is_longer_than_the_ttl(
    lab: Lab, client: Client
) -> None:
    async def main() -> None:
        with lab.failing(stuck=1.0), pytest.raises(OutcomeUnknown):
            await client.lock(NAME, ttl=1).acquire(timeout=0.3)
        lab.later(0.0, refuses=True)
        lab.later(3.0, refuses=False)
        for _ in range(400):
            await client._runtime.sleep(0.1)
            assert not lab.holder()

    lab.run(main())
    assert lab.network.calls[-1][1] == "grant", "it came last"


@pytest.mark.parametrize("shared", [False, True])
def test_a_clock_that_is_set_back_does_not_keep_the_name_of_one_that_died_after_it_has_renewed(
    lab: Lab, client: Client, shared: bool
) -> None:
    holder = lab.client("holder")

    async def hold() -> None:
        async with holder.lock(NAME, ttl=2, shared=shared):
            await holder._runtime.sleep(100)

    async def main() -> None:
        await client._runtime.sleep(0.1)
        lab.server.ahead -= 3600
        await client._runtime.sleep(1)
        lab.processes["holder"].crash()
        await client.lock(NAME, ttl=2).acquire(timeout=2.1)

    lab.start(hold(), "holder")
    lab.run(main())


# --- the holder is told, in time and only once -------------------------------------------------------------------


def test_one_failed_renewal_is_not_a_loss(lab: Lab, client: Client) -> None:
    async def main() -> None:
        async with client.lock(NAME, ttl=3) as lease:
            lab.later(0.8, refuses=True)
            lab.later(1.6, refuses=False)
            await client._runtime.sleep(9)
            assert not lease.lost

    lab.run(main())


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_holder_that_cannot_renew_is_told_at_its_deadline_and_not_before(lab: Lab, client: Client, how: str) -> None:
    async def main() -> None:
        held: Lease | None = None
        began = client._runtime.now()
        with pytest.raises(LeaseLost) as lost:
            async with client.lock(NAME, ttl=3) as held:
                setattr(lab.server, how, True)
                await client._runtime.sleep(60)
        assert lost.value.reason is LossReason.EXPIRED
        assert client._runtime.now() - began == pytest.approx(3 * 0.99 - 0.002, abs=0.001)
        assert held is not None
        assert client._runtime.now() == pytest.approx(held.lost._deadline, abs=0.001)

    lab.run(main())


def test_a_holder_whose_lock_was_removed_is_told_at_the_next_renewal_and_does_not_take_it_again(
    lab: Lab, client: Client
) -> None:
    async def main() -> None:
        with pytest.raises(LeaseLost) as lost:
            async with client.lock(NAME, ttl=3):
                lab.server.restart()
                await client._runtime.sleep(60)
        assert lost.value.reason is LossReason.TAKEN
        assert client._runtime.now() < 1.1
        assert not lab.holder()

    lab.run(main())


def test_a_process_that_stood_still_is_told_when_it_goes_on_and_leaves_the_next_holder_alone(lab: Lab) -> None:
    first, second = lab.client("first"), lab.client("second")
    fences: list[int] = []

    async def stopped() -> None:
        with pytest.raises(LeaseLost):
            async with first.lock(NAME, ttl=1) as lease:
                fences.append(lease.fence)
                lab.processes["first"].pause(3)
                await first._runtime.sleep(0.1)
                raise AssertionError("it was lost while it stood still")

    async def next_in_line() -> None:
        await second._runtime.sleep(0.5)
        async with second.lock(NAME, ttl=30) as lease:
            fences.append(lease.fence)
            await second._runtime.sleep(5)
            assert lab.holder() == lease.fence

    lab.start(stopped(), "first")
    lab.start(next_in_line(), "second")
    lab.world.run()
    assert fences == sorted(fences)


def test_a_machine_that_slept_finds_its_lease_lost(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=10, on_lost="flag").acquire()
        lab.processes["p"].pause(1800)
        await client._runtime.sleep(0.001)
        assert lease.lost_reason is LossReason.EXPIRED
        with pytest.raises(LeaseLost):
            lease.check()

    lab.run(main())


def test_a_loss_is_told_to_the_task_that_holds_and_to_no_other(lab: Lab, client: Client) -> None:
    async def bystander() -> str:
        await client._runtime.sleep(10)
        return "undisturbed"

    async def main() -> None:
        with pytest.raises(LeaseLost):
            async with client.lock(NAME, ttl=1):
                lab.server.hangs = True
                await client._runtime.sleep(60)

    other = lab.start(bystander(), name="bystander")
    lab.run(main())
    assert other.result == "undisturbed"


def test_a_keeper_that_died_makes_the_lease_lost_at_its_deadline(lab: Lab, client: Client) -> None:
    async def main() -> None:
        with pytest.raises(LeaseLost):
            async with client.lock(NAME, ttl=3):
                for task in list(lab.world.tasks):
                    if "keeper" in task.name:
                        task.cancel()
                await client._runtime.sleep(60)
        assert lab.world.now < 3

    lab.run(main())


def test_max_hold_ends_a_lease_that_would_be_renewed_for_ever(lab: Lab, client: Client) -> None:
    async def main() -> None:
        began = client._runtime.now()
        with pytest.raises(LeaseLost) as lost:
            async with client.lock(NAME, ttl=1, max_hold=4):
                await client._runtime.sleep(3600)
        assert lost.value.reason is LossReason.MAX_HOLD
        assert client._runtime.now() - began == pytest.approx(4, abs=0.01)

    lab.run(main())


def test_a_body_longer_than_the_ttl_keeps_the_lock(lab: Lab, client: Client) -> None:
    async def main() -> None:
        async with client.lock(NAME, ttl=1) as lease:
            for _ in range(50):
                await client._runtime.sleep(1)
                assert lab.holder() == lease.fence

    lab.run(main())


def test_a_refused_second_try_leaves_the_first_hold_releasable(lab: Lab, client: Client) -> None:
    async def again() -> None:
        assert await client.lock(NAME).try_acquire() is None

    async def main() -> None:
        lease = await client.lock(NAME).acquire()
        lab.start(again(), name="again")
        await client._runtime.sleep(1)
        with pytest.raises(Misuse):
            await client.lock(NAME).acquire(timeout=0)
        await lease.release()
        assert not lab.holder()

    lab.run(main())


def test_the_budget_of_the_wait_is_not_the_length_of_the_lease(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lease = await client.lock(NAME, ttl=30).acquire(timeout=2)
        assert lease.ttl == 30
        assert lease.expires_in() > 29

    lab.run(main())


# --- waiting -------------------------------------------------------------------------------------------------------


def test_tasks_of_one_client_wait_for_each_other_in_the_order_of_arrival(lab: Lab, client: Client) -> None:
    """Another task of the same process is another owner: it waits, it does not enter too."""
    order: list[int] = []

    async def one(number: int) -> None:
        await client._runtime.sleep(0.01 * number)
        async with client.lock(NAME, ttl=5):
            order.append(number)
            await client._runtime.sleep(0.2)
            assert order[-1] == number, "nobody entered meanwhile"

    for number in range(8):
        lab.start(one(number), name=f"t{number}")
    lab.world.run()
    assert order == sorted(order)


def test_a_client_with_many_waiters_has_one_ticket_at_the_store(lab: Lab, client: Client) -> None:
    async def one() -> None:
        async with client.lock(NAME, ttl=5):
            await client._runtime.sleep(0.3)
            assert lab.waiting() <= 1

    for number in range(10):
        lab.start(one(), name=f"t{number}")
    lab.world.run()


def test_renewals_that_are_due_together_go_out_in_one_request(lab: Lab, client: Client) -> None:
    async def main() -> None:
        leases = [await client.lock(f"{NAME} {number}", ttl=3).acquire() for number in range(50)]
        await client._runtime.sleep(9)
        assert not any(lease.lost for lease in leases)

    lab.run(main())
    assert lab.sent("renew") <= 15


@pytest.mark.parametrize("timeout", [0, 0.2, 0.505, 1.01])
def test_a_server_that_stops_to_answer_does_not_prolong_the_timeout(timeout: float) -> None:
    for seed in range(60):
        lab = Lab(seed, Odds(lose_reply=0.3))
        client = lab.client()
        lab.server.memory.grant("sim", here(1, NAME, ""), "somebody", 60.0, queue=False)

        async def main(lab: Lab = lab, client: Client = client) -> None:
            await client._runtime.sleep(0.1)
            lab.later(1.05 * timeout * lab.world.chance.random(), hangs=True)
            began = client._runtime.now()
            with pytest.raises((NotAcquired, StoreUnavailable)):
                await client.lock(NAME, ttl=1).acquire(timeout=timeout)
            assert client._runtime.now() - began <= (timeout or 0.5) + 0.05, lab.world.story()

        lab.run(main())
        lab.world.close()


def test_a_newcomer_is_told_at_once_that_the_store_is_down(lab: Lab, client: Client) -> None:
    async def main() -> None:
        lab.server.refuses = True
        with pytest.raises(StoreUnavailable):
            await client.lock(NAME).acquire(timeout=None)
        assert lab.world.now < 0.05

    lab.run(main())


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_waiter_survives_a_blip_of_the_store(lab: Lab, how: str) -> None:
    holder, waiter = lab.client("holder"), lab.client("waiter")

    async def hold() -> None:
        async with holder.lock(NAME, ttl=30):
            await holder._runtime.sleep(6)

    async def wait() -> None:
        await waiter._runtime.sleep(0.5)
        lab.later(1.0, **{how: True})
        lab.later(4.0, **{how: False})
        async with waiter.lock(NAME, ttl=30, timeout=20):
            assert lab.world.now < 7.5

    lab.start(hold(), "holder")
    lab.start(wait(), "waiter")
    lab.world.run()


def test_a_lost_hint_costs_time_and_nothing_else(lab: Lab) -> None:
    holder, waiter = lab.client("holder"), lab.client("waiter")

    async def hold() -> None:
        async with holder.lock(NAME, ttl=30):
            await holder._runtime.sleep(2)

    async def wait() -> None:
        await waiter._runtime.sleep(0.5)
        async with waiter.lock(NAME, ttl=30):
            assert lab.world.now < 2.7

    with lab.failing(lose_hint=1.0):
        lab.start(hold(), "holder")
        lab.start(wait(), "waiter")
        lab.world.run()


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same run, moment by moment, whatever the clocks of the machine show."""
    import time  # noqa: PLC0415

    from workload import History  # noqa: PLC0415

    def story(seed: int) -> list[tuple[float, str, str]]:
        history = History(seed)
        outcome = history.run()
        assert not outcome.wrong
        return [(when, who, text if isinstance(text, str) else text()) for when, who, text in history.world.trace]

    undisturbed = [story(seed) for seed in range(5)]
    jumps = itertools.cycle([0, 3600 * 10**9, -3600 * 10**9, 10**18])
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + next(jumps))
    monkeypatch.setattr(time, "time", lambda: next(jumps) / 1e9)
    monkeypatch.setattr(time, "monotonic", lambda: next(jumps) / 1e9)
    assert [story(seed) for seed in range(5)] == undisturbed


# --- a coroutine that is closed where it stands ---------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["in the body", "in acquire", "in release"])
def test_a_coroutine_that_is_closed_leaves_the_lock_to_the_keeper(lab: Lab, client: Client, moment: str) -> None:
    left: list[bool] = []

    async def main() -> None:
        async with client.lock(NAME, ttl=30):
            await client._runtime.sleep(1.5)
            left.append(True)

    def is_there() -> bool:
        return {"in acquire": lab.sent("grant") > 0, "in the body": lab.world.now > 1, "in release": bool(left)}[moment]

    async def closer() -> None:
        victim = lab.start(main(), name="victim")
        while not is_there():
            await client._runtime.sleep(0.0001)
        assert lab.holder()
        victim.close()
        await client._runtime.sleep(1)
        assert not lab.holder()

    lab.run(closer())
