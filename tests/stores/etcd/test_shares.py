"""Shares of a lock in etcd: what they cost, what a try leaves behind, and which waiter is told of room."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import LossReason, Misuse, OutcomeUnknown, StaleFence
from dibs.guards import etcd as guarding
from dibs.share import SHARED, Share
from dibs.stores.etcd.port.gateway import Etcd
from dibs.stores.etcd.waiting import WAITER_TTL
from dibs.stores.store import Busy, Grant
from dibs.testing.contract.sharing import holders_are
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.world import STEP, Happening, World
from dibs.testing.proxy import FaultProxy
from servers.etcd import EtcdServer
from tempo import took

from .kind import EtcdKind

ONE, TWO = Share(1, 2), Share(2, 2)

PROMPT = 2.0
"""Seconds within which a waiter that is told has gone in; one that is not told looks after five."""


class TestCosts(EtcdKind):
    """What is asked of etcd for a part."""

    async def test_a_part_costs_one_transaction_to_take_or_two_beside_others(
        self, world: World, calls: Counter[str]
    ) -> None:
        await world.crashed("warm", 30)
        for share, others, transactions in (
            *((SHARED, others, 1) for others in ([], [SHARED], [SHARED, SHARED])),
            *((ONE, others, count) for others, count in (([], 1), ([ONE], 2))),
        ):
            name = world.name()
            for other in others:
                await world.crashed(name, 30, other)
            ask = world.ask(name, share=share)
            calls.clear()
            assert isinstance(await world.store.grant(ask, STEP), Grant)
            assert await world.store.release(name, ask.token, STEP) is None
            del calls["lease/keepalive"]  # as the time comes
            assert calls == {"kv/txn": transactions, "kv/deleterange": 1}, (share, others)

    async def test_a_try_that_is_refused_is_one_transaction_and_puts_nothing(
        self, world: World, etcd_server: EtcdServer, calls: Counter[str]
    ) -> None:
        held = [await world.crashed("slots", 30, ONE) for _ in range(2)]
        alone = await world.crashed("alone", 30)
        before = etcd_server.call("kv/range", key="x")["header"]["revision"]
        for name, share in (("slots", ONE), ("slots", TWO), ("alone", SHARED), ("alone", ONE)):
            calls.clear()
            assert isinstance(await world.store.grant(world.ask(name, share=share), STEP), Busy)
            assert calls["kv/txn"] == 1
        for share in (SHARED, Share(1, 3)):
            calls.clear()
            with pytest.raises(Misuse, match="semaphore of 2 slots"):
                await world.store.grant(world.ask("slots", share=share), STEP)
            assert (calls["kv/txn"], calls["kv/deleterange"]) == (1, 0)
        assert etcd_server.call("kv/range", key="x")["header"]["revision"] == before
        assert len(etcd_server.keys_under("dibs/locks/")) == len([*held, alone])

    async def test_a_crowd_at_a_semaphore_costs_the_same_few_calls_for_each_hand_over(
        self, world: World, calls: Counter[str]
    ) -> None:
        crowd = 16
        held = await world.crashed("a", 30, TWO)
        waiters = [await queued(world, "a", ONE, number + 1, once=True) for number in range(crowd)]
        calls.clear()
        began = world.now()
        await world.store.release("a", held.token, STEP)
        fences = [await waiter.result() for waiter in waiters]
        assert fences == sorted(fences)
        alive = crowd * ((world.now() - began) / 0.5 + 2)  # each is a client, and keeps its ticket and its lease
        assert calls["kv/txn"] <= 2 * crowd + 4 + alive
        assert calls["kv/range"] == 0
        assert calls["watch"] <= crowd + alive

    async def test_the_first_in_line_asks_only_when_there_is_room_for_it(
        self, world: World, calls: Counter[str]
    ) -> None:
        held = [await world.crashed("a", 30, Share(1, 3)) for _ in range(3)]
        heavy = await queued(world, "a", Share(3, 3), 1)
        quitters = [world.ask("a", queue=True, share=Share(1, 3)) for _ in range(2)]
        for quitter in quitters:
            assert isinstance(await world.store.grant(quitter, STEP), Busy)
        asked = world.asks("grant")
        for token in [*(claim.token for claim in held[:2]), *(quitter.token for quitter in quitters)]:
            await world.store.release("a", token, STEP)
        began = world.now()
        await world.until(lambda: later(world, began + 0.2))
        assert world.asks("grant") == asked
        await world.store.release("a", held[2].token, STEP)
        await prompt(world, heavy)
        assert world.asks("grant") == asked + 1


class TestRaces(EtcdKind):
    """What may come between a look and a put, and replies that do not."""

    @pytest.mark.parametrize("comes", [ONE, None], ids=["a part", "the whole"])
    async def test_a_free_slot_is_not_taken_past_a_client_that_came_meanwhile(
        self, world: World, comes: Share | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await world.crashed("a", 30, ONE)
        other, ask = world.ask("a", queue=True, share=comes), world.ask("a", share=ONE)
        after_a_look(monkeypatch, "kv/txn", functools.partial(world.store.grant, other, STEP))
        assert isinstance(await world.store.grant(ask, STEP), Busy)
        assert [holder.share for holder in await world.store.holders("a", STEP)] == ["1 of 2 slots"] * (
            2 if comes else 1
        )

    async def test_a_slot_that_was_seen_is_taken_although_others_went_meanwhile(
        self, world: World, monkeypatch: pytest.MonkeyPatch, calls: Counter[str]
    ) -> None:
        held = await world.crashed("a", 30, ONE)
        after_a_look(monkeypatch, "kv/txn", functools.partial(world.store.release, "a", held.token, STEP))
        calls.clear()
        assert isinstance(await world.store.grant(world.ask("a", share=ONE), STEP), Grant)
        assert calls["kv/txn"] == 2

    async def test_a_part_whose_answer_was_lost_is_the_same_grant_when_it_is_asked_for_again(
        self, world: World, etcd_server: EtcdServer, fault_proxy: Callable[[EtcdServer], FaultProxy]
    ) -> None:
        proxy = fault_proxy(etcd_server)
        store = self.open_store(f"etcd://127.0.0.1:{proxy.port}", "default", world.runtime)
        assert isinstance(await store.grant(world.ask("warm"), STEP), Grant)
        for share in (SHARED, ONE):
            name = world.name()
            ask = world.ask(name, share=share)
            proxy.drop_reply(to=b"kv/txn", times=2, end="rst")  # what the port sends again is lost too
            with pytest.raises(OutcomeUnknown):
                await store.grant(ask, STEP)
            made = (await world.store.show(name, STEP)).fence
            assert await store.grant(ask, STEP) == Grant(made, 30.5)
            assert await holders_are(world, name, 1)
        await store.close()

    async def test_one_that_waits_for_other_slots_and_is_refused_leaves_no_key(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        held = await world.crashed("a", 30, ONE)
        ask = world.ask("a", queue=True, share=Share(1, 3))
        with pytest.raises(Misuse, match="semaphore of 2 slots"):
            await world.store.grant(ask, STEP)
        assert etcd_server.keys_under() == [f"dibs/locks/default/a/{held.token}"]


class TestWhoIsTold(EtcdKind):
    """A waiter looks when somebody it waits for goes, or goes in; nobody has to wait for the slow look."""

    @pytest.mark.parametrize("ttl", [WAITER_TTL - 0.5, 30], ids=["one lease of etcd", "two leases of etcd"])
    async def test_all_go_in_for_whom_there_is_room(self, world: World, ttl: float) -> None:
        held = await world.crashed("a", 30)
        waiters = [await queued(world, "a", Share(1, 4), number + 1, ttl) for number in range(4)]
        await world.store.release("a", held.token, STEP)
        for waiter in waiters:
            await prompt(world, waiter)

    async def test_a_writer_waits_for_the_reader_that_leaves_last(self, world: World, calls: Counter[str]) -> None:
        readers = [await world.crashed("a", 30, SHARED) for _ in range(3)]
        writer = await queued(world, "a", None, 1)
        for reader in reversed(readers):
            assert not writer.over
            await world.store.release("a", reader.token, STEP)
        await prompt(world, writer)

    async def test_readers_go_in_together_when_the_writer_before_them_gives_up(self, world: World) -> None:
        await world.crashed("a", 30, SHARED)
        writer = world.ask("a", queue=True)
        assert isinstance(await world.store.grant(writer, STEP), Busy)
        readers = [await queued(world, "a", SHARED, number + 2) for number in range(3)]
        await world.store.release("a", writer.token, STEP)
        for reader in readers:
            await prompt(world, reader)

    async def test_a_waiter_behind_one_that_gives_up_looks_again(self, world: World) -> None:
        held = await world.crashed("a", 30, ONE)
        heavy = world.ask("a", queue=True, share=TWO)
        assert isinstance(await world.store.grant(heavy, STEP), Busy)
        light = [await queued(world, "a", ONE, number + 2) for number in range(2)]
        await world.store.release("a", heavy.token, STEP)
        await prompt(world, light[0])
        await world.store.release("a", held.token, STEP)
        await prompt(world, light[1])

    async def test_an_ask_for_other_slots_is_refused_when_the_waiter_before_it_goes_in(self, world: World) -> None:
        held = await world.crashed("a", 30)
        first, odd, last = [
            await queued(world, "a", share, number + 1) for number, share in enumerate((ONE, SHARED, ONE))
        ]
        await world.store.release("a", held.token, STEP)
        await prompt(world, first)
        with pytest.raises(Misuse, match="semaphore of 2 slots"):
            await prompt(world, odd)
        await prompt(world, last)

    async def test_a_place_in_line_that_somebody_deletes_is_taken_again(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        held = await world.crashed("a", 30, TWO)
        waiter = await queued(world, "a", ONE, 1)
        [waiting] = [key for key in etcd_server.keys_under() if held.token not in key]
        etcd_server.call("kv/deleterange", key=waiting)
        await world.until(lambda: is_there(etcd_server, waiting), PROMPT)
        await world.store.release("a", held.token, STEP)
        await prompt(world, waiter)

    async def test_a_history_that_was_compacted_ends_a_watch_and_not_the_wait(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        held = await world.crashed("a", 30, TWO)
        ask = world.ask("a", queue=True, share=ONE)
        busy = await world.store.grant(ask, STEP)
        assert isinstance(busy, Busy)
        for _ in range(3):
            last = etcd_server.call("kv/put", key="other", value="")["header"]["revision"]
        etcd_server.call("kv/compaction", revision=last)
        with took(STEP - 1):
            await world.store.wait(ask, busy, STEP)
        await world.store.release("a", held.token, STEP)
        assert isinstance(await world.store.grant(ask, STEP), Grant)


class TestLooking(EtcdKind):
    """What people and resources see of it."""

    async def test_holders_and_waiters_are_shown_with_their_parts(self, world: World) -> None:
        held = [await world.crashed("a", 30, Share(weight, 3)) for weight in (1, 2)]
        waits = world.ask("a", queue=True, share=Share(3, 3))
        busy = await world.store.grant(waits, STEP)
        assert isinstance(busy, Busy)
        assert busy.holder is not None
        assert busy.holder.share == "1 of 3 slots"
        state = await world.store.show("a", STEP)
        assert [(holder.fence, holder.share) for holder in state.holders] == [
            (held[0].fence, "1 of 3 slots"),
            (held[1].fence, "2 of 3 slots"),
        ]
        assert all(holder.expires_in for holder in state.holders)
        assert [waiter.share for waiter in state.waiting] == ["3 of 3 slots"]
        assert state.fence == held[1].fence
        assert await world.store.holders("", STEP) == list(state.holders)

    async def test_a_key_of_another_program_counts_as_an_exclusive_waiter(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        await world.crashed("a", 30, SHARED)
        etcd_server.call("kv/put", key="dibs/locks/default/a/theirs", value="x")
        assert isinstance(await world.store.grant(world.ask("a", share=SHARED), STEP), Busy)
        assert await holders_are(world, "a", 1)
        assert await waiters_are(world, "a", 1)

    async def test_one_of_several_is_broken_or_revoked_and_the_others_hold(self, world: World) -> None:
        ours, theirs = world.client(), world.client()
        kept, broken = [await client.semaphore("a", 2).acquire(timeout=0) for client in (ours, theirs)]
        assert not await ours.evict("a", fence=kept.fence - 1)
        assert await ours.evict("a", fence=broken.fence)
        with pytest.raises(Exception, match="evicted"):
            await broken.renew()
        assert broken.lost_reason is LossReason.EVICTED
        await kept.renew()
        assert (await world.store.show("a", STEP)).fence == broken.fence > kept.fence

    async def test_the_condition_of_one_holder_is_about_that_one(self, world: World, etcd_server: EtcdServer) -> None:
        first, second = [await world.client().lock("a", shared=True).acquire(timeout=0) for _ in range(2)]
        body = guarding.guarded(second, guarding.put("/app/primary", "db1"))
        guarding.check(second, etcd_server.call("kv/txn", **body))
        mine = guarding.guarded(second, guarding.put("/app/primary", "db2"))
        mine["compare"].append({"key": "L2FwcA==", "target": "VERSION", "version": "1"})
        guarding.check(second, etcd_server.call("kv/txn", **mine))  # a condition of the caller's own is no stale fence
        await second.release()
        with pytest.raises(StaleFence):
            guarding.check(second, etcd_server.call("kv/txn", **body))
        await first.release()


# --- what happens --------------------------------------------------------------------------------------------------


async def queued(
    world: World, name: str, share: Share | None, count: int, ttl: float = 30, *, once: bool = False
) -> Happening[int]:
    """Let a new client take a share of *name*, and give it back at *once* if asked to; return when it is queued."""
    client = world.client()
    lock = client.lock(name, shared=share == SHARED, ttl=ttl)
    if share is not None and share != SHARED:
        lock = client.semaphore(name, share.slots, weight=share.weight, ttl=ttl)

    async def main() -> int:
        lease = await lock.acquire()
        if once:
            await lease.release()
        return lease.fence

    waiter = world.begin(main)
    await world.until(lambda: waiters_are(world, name, count))
    return waiter


async def prompt(world: World, waiter: Happening[int]) -> int:
    """The fence of *waiter*, that has it at once."""
    await world.until(lambda: is_over(waiter), PROMPT)
    return await waiter.result()


async def is_over(waiter: Happening[int]) -> bool:
    return waiter.over


async def is_there(server: EtcdServer, key: str) -> bool:
    return key in server.keys_under()


async def later(world: World, moment: float) -> bool:
    return world.now() > moment


def after_a_look(monkeypatch: pytest.MonkeyPatch, method: str, happens: Callable[[], Any]) -> None:
    """Let something happen between the next answer to *method* and whatever is asked then."""
    call, waits = Etcd.call, [happens]

    async def call_and_more(self: Etcd, asked: str, *rest: Any) -> Any:
        answer = await call(self, asked, *rest)
        if asked == method and waits:
            await waits.pop()()
        return answer

    monkeypatch.setattr(Etcd, "call", call_and_more)
