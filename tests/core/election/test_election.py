"""An election on the memory store, in every runtime: what stops the work, and what is then done with the place."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core.worlds import CoreTests
from dibs.core.election.term import Term
from dibs.errors import LeaseLost, LossReason, Misuse, NotAcquired, StoreUnavailable
from dibs.testing.contract.electing import candidate, go_on_in_spite, until_told
from dibs.testing.contract.ownership import holds, is_free
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.watched import refuse
from dibs.testing.contract.world import PATIENCE, World


class TestElection(CoreTests):
    async def test_one_failed_renewal_does_not_end_a_term(self, world: World) -> None:
        client = world.client()
        async with client.election(world.name(), ttl=0.5).lead() as term:
            world.wire(client).spoil("renew", refuse)
            await world.until(lambda: asked(world, "renew", 3))
            term.check()

    async def test_nothing_is_renewed_once_the_place_was_given_up(self, world: World) -> None:
        election = candidate(world, world.name(), ttl=0.15)
        async with election.lead():
            pass
        before = world.asks("renew")
        await world.sleep(0.2)
        assert world.asks("renew") == before

    async def test_what_is_left_of_a_term_falls_while_renewals_fail(self, world: World) -> None:
        client = world.client()
        election = client.election(world.name(), ttl=0.6)
        with pytest.raises(LeaseLost):
            async with election.lead() as term:
                world.wire(client).spoil_every("renew", refuse)
                seen = [election.is_leader()]
                while term.lost._reason is None:
                    await world.sleep(0.02)
                    seen.append(election.is_leader())
        assert seen == sorted(seen, reverse=True)
        assert 0 < seen[0] <= 0.4
        assert election.is_leader() == 0.0

    async def test_who_is_stopped_while_it_campaigns_leaves_the_line(self, world: World) -> None:
        name = world.name()
        held = await world.crashed(name, 60)
        election = candidate(world, name)
        campaign = world.begin(election.lead().__aenter__)
        await world.until(lambda: waiters_are(world, name, 1))
        election.stop()
        with pytest.raises(NotAcquired):
            await campaign.result()
        await world.until(lambda: waiters_are(world, name, 0))
        assert await holds(world, name) == held.fence

    async def test_who_is_stopped_at_the_moment_of_winning_is_told_at_once(self, world: World) -> None:
        client = world.client()
        election = client.election(world.name())

        async def win_and_be_stopped(step: Callable[[], Awaitable[Any]], within: float) -> Any:
            answer = await step()
            election.stop()
            return answer

        world.wire(client).spoil("grant", win_and_be_stopped)
        with pytest.raises(LeaseLost) as lost:
            async with election.lead() as term:
                await until_told(term)
        assert lost.value.reason is LossReason.STEPPED_DOWN
        assert await is_free(world, election.name)

    async def test_a_stopped_candidate_does_not_come_back(self, world: World) -> None:
        election = candidate(world, world.name())
        election.stop()
        with pytest.raises(Misuse, match="was stopped"):
            await election.lead().__aenter__()
        await election.run(must_not_be_called)
        assert world.asks("grant") == 0

    async def test_an_error_of_the_work_comes_out_when_the_place_was_given_up(self, world: World) -> None:
        name = world.name()
        election = candidate(world, name)
        for error in (ValueError("broken"), KeyboardInterrupt(), LeaseLost("another lock", 3, LossReason.EXPIRED)):

            async def work(term: Term, error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)) as raised:
                await election.run(work)
            assert raised.value is error
            assert await is_free(world, name)
            assert election.is_leader() == 0.0

    async def test_a_lost_term_is_followed_by_another_campaign(self, world: World) -> None:
        client, terms = world.client(), list[int]()
        election = client.election(world.name(), ttl=0.3, retry=0.01)

        async def work(term: Term) -> None:
            terms.append(term.fence)
            if len(terms) == 1:
                await world.lose(term._lease)
                await until_told(term)
                term.check()  # blocking work says so itself; other work was cancelled above
            election.stop()

        await world.begin(lambda: election.run(work)).result()
        assert len(terms) == 2

    async def test_an_outage_is_waited_out(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        client = world.client()
        election = client.election(world.name(), retry=0.01)
        for _ in range(3):
            world.wire(client).spoil("grant", refuse)

        async def work(term: Term) -> None:
            election.stop()

        await world.begin(lambda: election.run(work)).result()
        assert world.asks("grant") == 4
        assert sum("does not campaign" in record.message for record in caplog.records) == 3

    async def test_work_that_goes_on_is_logged_and_keeps_its_place(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        election = world.client().election(world.name(), stuck_after=0.02)
        with pytest.raises(LeaseLost):
            async with election.lead() as term:
                election.stop()
                await go_on_in_spite(world, lambda: bool(errors(caplog)))
                assert await holds(world, election.name) == term.fence
        [told] = errors(caplog)
        assert "stepped down) and still runs after 0.02 s" in told.message

    async def test_work_that_goes_on_ends_the_process_if_asked(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client, said = world.client(), list[str]()
        monkeypatch.setattr(client._runtime, "end_process", said.append)
        election = client.election(world.name(), on_stuck="exit", stuck_after=0.02, candidate="web-3")
        with pytest.raises(LeaseLost):
            async with election.lead():
                election.stop()
                await go_on_in_spite(world, lambda: bool(said))
        assert len(said) == 1
        assert said[0].startswith(f"the work of 'web-3', which leads '{election.name}' (term ")

    async def test_an_error_of_the_block_has_the_end_of_its_term_as_a_note(self, world: World) -> None:
        election = candidate(world, world.name())
        with pytest.raises(ValueError, match="mine") as raised:
            async with election.lead():
                election.stop()
                raise ValueError("mine")
        assert any("stepped down" in note for note in raised.value.__notes__)

    async def test_the_error_and_the_term_give_one_reason(self, world: World) -> None:
        """Whoever stepped down and was slow may have lost the place before it was given up: that is what counts."""
        for stop_first in (False, True):
            election = candidate(world, world.name())
            with pytest.raises(LeaseLost) as lost:
                async with election.lead() as term:
                    if stop_first:
                        election.stop()
                    reason = await world.lose(term._lease)
            assert lost.value.reason is term.lost_reason is term._lease.lost_reason is reason

    async def test_a_note_about_the_end_of_a_term_and_the_term_give_one_reason(self, world: World) -> None:
        election = candidate(world, world.name())
        with pytest.raises(ValueError, match="mine") as raised:
            async with election.lead() as term:
                reason = await world.lose(term._lease)
                raise ValueError("mine")
        assert term.lost_reason is reason
        assert raised.value.__notes__ == [str(LeaseLost(term.name, term.fence, reason))]

    async def test_a_block_is_entered_once_and_left_after_it_was_entered(self, world: World) -> None:
        leading = candidate(world, world.name()).lead()
        with pytest.raises(Misuse, match="without having been entered"):
            await leading.__aexit__(None, None, None)
        async with leading:
            with pytest.raises(Misuse, match="was entered already"):
                await leading.__aenter__()

    async def test_a_leader_of_no_name_goes_by_host_and_pid(self, world: World) -> None:
        election = candidate(world, world.name())
        async with election.lead():
            leader = await election.leader()
            assert leader is not None
            assert leader.candidate == f"{os.uname().nodename}:{world.runtime.pid()}" == election.candidate

    async def test_who_holds_the_lock_without_an_election_is_a_leader_too(self, world: World) -> None:
        async with world.client().lock(world.name(), note="by hand") as lease:
            leader = await candidate(world, lease.name).leader()
            assert leader is not None
            assert (leader.candidate, leader.term) == (f"{leader.holder.host}:{leader.holder.pid}", lease.fence)

    async def test_a_watch_does_not_call_an_outage_a_vacancy(self, world: World) -> None:
        client = world.client()
        leaders = client.election(world.name(), ttl=0.3).watch(every=0.01)
        assert await anext(leaders) is None
        world.wire(client).spoil_every("show", refuse)
        began = world.now()
        with pytest.raises(StoreUnavailable):
            await anext(leaders)
        assert world.now() - began >= 0.3

    @pytest.mark.parametrize("every", [0.01, 600])
    async def test_a_watch_ends_when_the_election_is_stopped(self, world: World, every: float) -> None:
        """At once, however rarely it looks."""
        election = candidate(world, world.name())
        leaders, seen, began = election.watch(every=every), list[object](), world.now()

        async def look() -> None:
            async for leader in leaders:
                seen.append(leader)

        watching = world.begin(look)
        await world.until(lambda: is_true(bool(seen)))
        election.stop()
        await watching.result()
        assert seen == [None]
        assert world.now() - began < 300

    async def test_the_body_is_cancelled_at_the_end_of_its_term(self, world: World, asyncio_only: None) -> None:
        election, came_back = candidate(world, world.name()), False
        with pytest.raises(LeaseLost):
            async with election.lead():
                asyncio.get_running_loop().call_soon(election.stop)
                await asyncio.sleep(PATIENCE)
                came_back = True
        assert not came_back
        assert await is_free(world, election.name)

    async def test_a_cancel_of_ones_own_stays_a_cancel(self, world: World, asyncio_only: None) -> None:
        election, began = candidate(world, world.name()), asyncio.Event()

        async def work(term: Term) -> None:
            began.set()
            await asyncio.sleep(PATIENCE)

        task = asyncio.ensure_future(election.run(work))
        await began.wait()
        election.stop()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await is_free(world, election.name)


def errors(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == logging.ERROR]


async def must_not_be_called(term: Term) -> None:
    raise AssertionError


async def asked(world: World, step: str, times: int) -> bool:
    return world.asks(step) >= times


async def is_true(truth: bool) -> bool:
    return truth
