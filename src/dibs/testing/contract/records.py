"""Records: what a holder leaves outlives its lease, answers who asks for the name, and is written by nobody else."""

from __future__ import annotations

from dibs.errors import LossReason
from dibs.holder import Record
from dibs.stores.guarantees import Ability
from dibs.stores.record_store import LONGEST_RECORD
from dibs.stores.store import Ask, Busy, Claim, Grant
from dibs.testing.contract.suite import Kind, needs
from dibs.testing.contract.watched import Watched
from dibs.testing.contract.world import STEP, World

KEEP = 60.0

AWKWARD = bytes(range(256)) + b"\r\n:'\\" + "\0%ü☃".encode()


class Records(Kind):
    """One step grants or answers with the record; one step writes it and gives the lock back."""

    @needs(Ability.RECORDS)
    async def test_a_name_without_a_record_is_granted(self, world: World) -> None:
        """Or refused, as by `grant`, while another holds it."""
        held = await begun(world, world.name())
        busy = await world.records.grant_unless_recorded(world.ask(held.name), 0, STEP)
        assert isinstance(busy, Busy)
        assert busy.holder is not None
        assert busy.holder.fence == held.fence
        assert await world.records.record(held.name, STEP) is None

    @needs(Ability.RECORDS)
    async def test_a_record_answers_every_later_ask_and_is_what_was_written(self, world: World) -> None:
        held = await begun(world, world.name())
        assert await world.records.finish(held, AWKWARD, KEEP, STEP) is None
        for _ in range(2):
            found = await world.records.grant_unless_recorded(world.ask(held.name), 0, STEP)
            assert isinstance(found, Record)
            assert found[:3] == (held.name, held.fence, AWKWARD)
            assert KEEP - 10 < found.expires_in <= KEEP + 0.01
        assert (await world.store.show(held.name, STEP)).holder is None
        kept = await world.records.record(held.name, STEP)
        assert kept is not None
        assert kept[:4] == found[:4]

    @needs(Ability.RECORDS)
    async def test_a_plain_grant_does_not_look_at_records(self, world: World) -> None:
        held = await finished(world, world.name())
        again = await world.store.grant(world.ask(held.name), STEP)
        assert isinstance(again, Grant)
        assert again.fence > held.fence

    @needs(Ability.RECORDS)
    async def test_who_has_seen_a_record_may_take_the_name_all_the_same(self, world: World) -> None:
        """And is answered with the next one, if there is one by then: whatever was seen is named by its fence."""
        first = await finished(world, world.name(), b"first")
        second = await begun(world, first.name, after=first.fence)
        assert second.fence > first.fence
        assert await world.records.finish(second, b"second", KEEP, STEP) is None
        found = await world.records.grant_unless_recorded(world.ask(first.name), first.fence, STEP)
        assert isinstance(found, Record)
        assert found[1:3] == (second.fence, b"second")

    @needs(Ability.RECORDS)
    async def test_a_record_is_there_also_for_those_who_come_while_the_name_is_held_again(self, world: World) -> None:
        first = await finished(world, world.name())
        await begun(world, first.name, after=first.fence)
        assert isinstance(await world.records.grant_unless_recorded(world.ask(first.name), 0, STEP), Record)
        assert isinstance(await world.records.grant_unless_recorded(world.ask(first.name), first.fence, STEP), Busy)

    @needs(Ability.RECORDS)
    async def test_an_ask_whose_answer_was_lost_is_granted_again(self, world: World) -> None:
        first = await finished(world, world.name())
        ask = world.ask(first.name)
        once = await world.records.grant_unless_recorded(ask, first.fence, STEP)
        assert await world.records.grant_unless_recorded(ask, first.fence, STEP) == once

    @needs(Ability.RECORDS)
    async def test_finishing_again_after_a_lost_answer_is_success(self, world: World) -> None:
        """Also when the name has been taken again meanwhile; but not for something else than what was written."""
        held = await finished(world, world.name(), b"done")
        assert await world.records.finish(held, b"done", KEEP, STEP) is None
        assert await world.records.finish(held, b"more", KEEP, STEP) is not None
        await begun(world, held.name, after=held.fence)
        assert await world.records.finish(held, b"done", KEEP, STEP) is None

    @needs(Ability.RECORDS)
    async def test_a_finisher_that_comes_late_is_refused(self, world: World) -> None:
        """Its lease ended, another has the name or has finished: the record is the other's, and so is the lock."""
        late = await begun(world, world.name(), ttl=world.store.shortest_ttl)
        await world.sleep(late.ttl + 0.02)
        other = await begun(world, late.name)
        assert await world.records.finish(late, b"late", KEEP, STEP) in {LossReason.EXPIRED, LossReason.TAKEN}
        assert await world.records.remember(late, b"late", KEEP, STEP) in {LossReason.EXPIRED, LossReason.TAKEN}
        assert await world.records.record(late.name, STEP) is None
        assert await world.store.renew([other], STEP) == [None]
        assert await world.records.finish(other, b"other", KEEP, STEP) is None
        assert await world.records.finish(late, b"late", KEEP, STEP) is not None
        kept = await world.records.record(late.name, STEP)
        assert kept is not None
        assert kept[1:3] == (other.fence, b"other")

    @needs(Ability.RECORDS)
    async def test_a_lease_that_ended_cannot_finish_even_if_nobody_came_after_it(self, world: World) -> None:
        ended = await begun(world, world.name(), ttl=world.store.shortest_ttl)
        await world.sleep(ended.ttl + 0.02)
        assert await world.records.finish(ended, b"late", KEEP, STEP) in {LossReason.EXPIRED, LossReason.TAKEN}
        assert await world.records.record(ended.name, STEP) is None

    @needs(Ability.RECORDS)
    async def test_the_fence_is_compared_besides_the_token(self, world: World) -> None:
        held = await begun(world, world.name())
        older = held._replace(fence=held.fence - 1)
        assert await world.records.finish(older, b"older", KEEP, STEP) is not None
        assert await world.records.record(held.name, STEP) is None
        assert await world.store.renew([held], STEP) == [None]

    @needs(Ability.RECORDS)
    async def test_who_was_evicted_cannot_finish_and_is_told_why(self, world: World) -> None:
        held = await begun(world, world.name())
        assert await world.store.evict(held.name, held.fence, "", STEP)
        assert await world.records.finish(held, b"done", KEEP, STEP) == LossReason.EVICTED

    @needs(Ability.RECORDS)
    async def test_what_is_remembered_is_there_while_the_name_is_held(self, world: World) -> None:
        """It can be replaced by its writer, and outlives a release and a lease that ends."""
        held = await begun(world, world.name(), ttl=world.short)
        assert await world.records.remember(held, b"begun", KEEP, STEP) is None
        assert await world.records.remember(held, b"begun", KEEP, STEP) is None
        assert isinstance(await world.records.grant_unless_recorded(world.ask(held.name), held.fence, STEP), Busy)
        assert await world.records.remember(held, b"half", KEEP, STEP) is None
        await world.sleep(held.ttl + 0.02)
        found = await world.records.grant_unless_recorded(world.ask(held.name), 0, STEP)
        assert isinstance(found, Record)
        assert found[1:3] == (held.fence, b"half")

    @needs(Ability.RECORDS)
    async def test_a_record_is_kept_for_its_time_and_not_longer(self, world: World) -> None:
        held = await begun(world, world.name())
        assert await world.records.finish(held, b"done", 0.15, STEP) is None
        written_at = world.now()
        assert await world.records.record(held.name, STEP) is not None
        await world.until(lambda: granted(world, held.name))
        assert world.now() - written_at > 0.1
        assert await world.records.record(held.name, STEP) is None
        assert held.name not in [record.name for record in await world.records.records("", 100, STEP)]

    @needs(Ability.RECORDS)
    async def test_many_records_come_and_go(self, world: World) -> None:
        """What a store does to get rid of those that are over takes nothing else with it."""
        kept, name = await finished(world, world.name()), world.name()
        for number in range(30):
            held = await begun(world, f"{name} {number}")
            assert await world.records.finish(held, b"done", 0.001, STEP) is None
        assert await world.records.record(kept.name, STEP) is not None
        assert (await begun(world, kept.name, after=kept.fence)).fence > kept.fence

    @needs(Ability.RECORDS)
    async def test_the_largest_record_comes_back_whole(self, world: World) -> None:
        data = b"\xff\x00" * (LONGEST_RECORD // 2)
        held = await finished(world, world.name(), data)
        found = await world.records.grant_unless_recorded(world.ask(held.name), 0, STEP)
        assert isinstance(found, Record)
        assert found.data == data
        empty = await world.records.record((await finished(world, world.name(), b"")).name, STEP)
        assert empty is not None
        assert empty.data == b""

    @needs(Ability.RECORDS)
    async def test_records_are_listed_by_prefix_the_latest_first(self, world: World) -> None:
        """And not more than were asked for."""
        prefix = world.name()
        names = [f"{prefix}/{slot}" for slot in ("b*", "a%3A", "ü☃ '\\", "[x]")]
        for name in names:
            await finished(world, name)
            await world.sleep(0.002)
        await finished(world, prefix.upper() + "/other")
        found = await world.records.records(prefix + "/", 10, STEP)
        assert [record.name for record in found] == names[::-1]
        assert [record.name for record in await world.records.records(prefix + "/", 2, STEP)] == names[:1:-1]
        assert [record.name for record in await world.records.records(prefix + "/b*", 9, STEP)] == names[:1]

    @needs(Ability.RECORDS)
    async def test_a_record_is_forgotten_if_it_is_the_one_that_was_named(self, world: World) -> None:
        held = await finished(world, world.name())
        assert not await world.records.forget(held.name, held.fence - 1, STEP)
        assert await world.records.forget(held.name, held.fence, STEP)
        assert not await world.records.forget(held.name, held.fence, STEP)
        assert await world.records.record(held.name, STEP) is None
        await begun(world, held.name)

    @needs(Ability.RECORDS)
    async def test_finishing_wakes_who_waits_and_answers_it(self, world: World) -> None:
        held = await begun(world, world.name())
        ask = world.ask(held.name, queue=True)
        busy = await world.records.grant_unless_recorded(ask, 0, STEP)
        assert isinstance(busy, Busy)
        waiting = world.begin(lambda: world.store.wait(ask, busy, STEP))
        await world.sleep(0.01)
        assert await world.records.finish(held, b"done", KEEP, STEP) is None
        await waiting.result()
        assert isinstance(await world.records.grant_unless_recorded(ask, 0, STEP), Record)
        await world.store.release(ask.name, ask.token, STEP)
        assert (await world.store.show(held.name, STEP)).waiting == ()

    @needs(Ability.RECORDS)
    async def test_of_many_who_ask_at_once_one_is_granted_and_the_rest_see_its_record(self, world: World) -> None:
        """Each asks until it has an answer: nobody does the work a second time."""
        name, done = world.name(), list[int]()

        async def one() -> int:
            store, ask = stepper(world), world.ask(name)
            while True:
                answer = await store.grant_unless_recorded(ask, 0, STEP)
                if isinstance(answer, Record):
                    return answer.fence
                if isinstance(answer, Grant):
                    done.append(answer.fence)
                    claim = Claim(name, ask.token, answer.fence, answer.ttl)
                    assert await store.finish(claim, b"done", KEEP, STEP) is None
                else:
                    await world.sleep(0.002)

        fences = await world.together(*[one] * 8)
        assert len(done) == 1
        assert set(fences) == set(done)

    @needs(Ability.RECORDS)
    async def test_records_of_another_namespace_are_others(self, world: World) -> None:
        held = await finished(world, world.name())
        other = stepper(world, "other")
        assert await other.record(held.name, STEP) is None
        assert await other.records("", 10, STEP) == []
        assert isinstance(await other.grant_unless_recorded(world.ask(held.name), 0, STEP), Grant)


def stepper(world: World, namespace: str = "default") -> Watched:
    """The store of one more client, for single steps."""
    client = world.client(namespace)
    client._context.check_usable()
    return world.wire(client)


async def begun(world: World, name: str, *, ttl: float = 30.0, after: int = 0) -> Claim:
    """A grant of *name*, which has no record after the fence *after*."""
    ask: Ask = world.ask(name, ttl=ttl)
    answer = await world.records.grant_unless_recorded(ask, after, STEP)
    assert isinstance(answer, Grant), answer
    return Claim(name, ask.token, answer.fence, answer.ttl)


async def finished(world: World, name: str, data: bytes = b"done") -> Claim:
    """A grant of *name* that was finished."""
    claim = await begun(world, name)
    assert await world.records.finish(claim, data, KEEP, STEP) is None
    return claim


async def granted(world: World, name: str) -> bool:
    """Take *name* if it has no record, and nobody holds it."""
    return isinstance(await world.records.grant_unless_recorded(world.ask(name), 0, STEP), Grant)
