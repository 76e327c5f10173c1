"""The etcd store on one real server: the contract, shared leases, and what etcd and its clients get wrong."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from cli.processes import Sandbox
from dibs.core.client import Client
from dibs.core.lease import Lease
from dibs.errors import LeaseLost, LossReason, Misuse, OutcomeUnknown, StaleFence, StoreUnavailable
from dibs.guards import etcd as guarding
from dibs.ports.http.source import Endpoint
from dibs.ports.http.wire_blocking import BlockingDial, BlockingWire
from dibs.runtime import run
from dibs.runtime.clock import wall_clock
from dibs.stores.etcd.leases import EtcdLeases
from dibs.stores.etcd.port.gateway import Etcd
from dibs.stores.etcd.requests import TOGETHER
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.etcd.tickets import EtcdTickets
from dibs.stores.etcd.waiting import WAITER_TTL
from dibs.stores.store import Busy, Claim, Grant, PartlyRenewed
from dibs.testing.contract import StoreContract
from dibs.testing.contract.waiting import waiters_are
from dibs.testing.contract.world import STEP, World
from dibs.testing.proxy import FaultProxy
from servers.certificates import Certificates
from servers.etcd import QUICK, EtcdServer
from servers.ports import Port
from servers.process import until
from tempo import took

from .kind import EtcdKind

Proxied = Callable[[EtcdServer], FaultProxy]


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdServer]:
    """A server with users; what they may do is what their names say."""
    with EtcdServer(arguments=[*QUICK, "--bcrypt-cost", "4"]) as server:
        yield server.allow(locks="dibs/", half="dibs/locks/", nothing="other/")


class TestContract(StoreContract):
    """As a user with only the rights that the docs name."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, guarded: EtcdServer) -> str:
        guarded.reset()
        return f"etcd://locks:locks@127.0.0.1:{guarded.port}"


class TestRights(EtcdKind):
    """A refusal is told as one, with what to grant, and leaves nothing behind."""

    @pytest.fixture
    def url(self, guarded: EtcdServer) -> str:
        guarded.reset()
        return f"etcd://locks:locks@127.0.0.1:{guarded.port}"

    async def test_what_a_user_may_not_do_is_told_and_leaves_nothing(self, world: World, guarded: EtcdServer) -> None:
        held = await world.crashed("a", 30)
        keys, leases = guarded.keys_under(), guarded.leases()
        for user in ("nothing", "half"):
            url = f"etcd://{user}:{user}@127.0.0.1:{guarded.port}"
            client = Client(self.open_store(url, "default", world.runtime), world.runtime)
            for lock in (client.lock("b"), client.semaphore("c", 2), client.lock("d", shared=True)):
                with pytest.raises(StoreUnavailable, match="role with read and write access to the prefix dibs/"):
                    await lock.acquire(timeout=1)
            with pytest.raises(StoreUnavailable, match="prefix dibs/"):
                await client.evict("a", fence=held.fence)
            await client.close()
        assert (guarded.keys_under(), guarded.leases()) == (keys, leases)


def store_of(world: World, client: Client) -> EtcdStore:
    store = world.wire(client)._store
    assert isinstance(store, EtcdStore)
    return store


class TestSharedLeases(EtcdKind):
    """Many locks live under one lease of etcd, and none of them longer than it should."""

    async def test_a_lock_is_one_transaction_to_take_and_one_delete_to_give_back(
        self, world: World, calls: Counter[str]
    ) -> None:
        client, name = world.client(), world.name()
        await (await client.lock(name).acquire(timeout=0)).release()
        calls["kv/txn"] = calls["kv/deleterange"] = 0
        began = world.now()
        for _ in range(20):
            await (await client.lock(name).acquire(timeout=0)).release()
        assert calls["kv/txn"] == calls["kv/deleterange"] == 20
        assert calls["lease/grant"] == 1
        assert calls["lease/keepalive"] <= (world.now() - began) / 0.5 + 1

    async def test_all_locks_of_a_client_with_one_ttl_share_a_lease_of_etcd(
        self, world: World, etcd_server: EtcdServer, calls: Counter[str]
    ) -> None:
        client = world.client()
        leases = [await client.lock(world.name()).acquire(timeout=0) for _ in range(10)]
        other = await client.lock(world.name(), ttl=60).acquire(timeout=0)
        assert len(etcd_server.leases()) == 2
        began = world.now()
        await world.until(lambda: later(world, began + 0.6))
        calls.clear()
        await store_of(world, client).renew([lease._claim for lease in [*leases, other]], STEP)
        assert calls == {"kv/txn": 1, "lease/keepalive": 2}
        calls.clear()
        await store_of(world, client).renew([lease._claim for lease in leases], STEP)
        assert calls == {"kv/txn": 1}, "it was renewed a moment ago"

    async def test_clients_and_refused_tries_leave_no_key_and_no_lease(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        ours, theirs = world.client(), world.client()
        lease = await ours.lock("a").acquire(timeout=0)
        for _ in range(3):
            assert await theirs.lock("a").try_acquire() is None
            with contextlib.suppress(dibs.NotAcquired):
                await theirs.lock("a").acquire(timeout=0.3)
        assert etcd_server.keys_under() == [f"dibs/locks/default/a/{lease.token}"]
        await lease.release()
        assert etcd_server.keys_under() == []
        await ours.lock("b", ttl=5).acquire(timeout=0)
        await ours.close()
        await theirs.close()
        assert (etcd_server.keys_under(), etcd_server.leases()) == ([], [])

    async def test_a_lease_that_reached_max_hold_is_deleted_although_others_keep_the_lease_of_etcd(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        client = world.client()
        kept = await client.lock("kept", ttl=1).acquire(timeout=0)
        ended = await client.lock("ended", ttl=1, max_hold=1.2).acquire(timeout=0)
        assert len(etcd_server.leases()) == 1
        assert await ended.lost.wait(STEP)
        await world.until(lambda: keys_are(etcd_server, [f"dibs/locks/default/kept/{kept.token}"]), 3.0)
        assert not kept.lost

    async def test_a_grant_that_nobody_renews_ends_although_others_come_and_go_under_the_lease_of_etcd(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        crashed = await world.crashed("forgotten", 0.5)
        began = world.now()
        while await is_there(etcd_server, crashed):
            ask = world.ask("busy", ttl=0.5)
            assert isinstance(await world.store.grant(ask, STEP), Grant)
            await world.store.release("busy", ask.token, STEP)
            assert world.now() - began < 5
        assert world.now() - began > 0.45
        assert len(etcd_server.leases()) == 1

    async def test_a_lease_of_etcd_that_is_revoked_is_told_at_once_to_all_holders_under_it(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        client = world.client()
        leases = [await client.lock(world.name()).acquire(timeout=0) for _ in range(3)]
        [revoked] = etcd_server.leases()
        etcd_server.call("lease/revoke", ID=revoked)
        with pytest.raises(LeaseLost):
            await leases[0].renew()
        assert leases[0].lost_reason is LossReason.TAKEN, "told before etcd was asked for the reason"
        assert [lease.lost_reason for lease in leases[1:]] == [LossReason.SESSION_ENDED] * 2
        again = await client.lock(leases[0].name).acquire(timeout=0)
        assert again.fence > leases[0].fence

    async def test_the_next_ask_finds_out_that_the_lease_of_etcd_was_revoked(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        client = world.client()
        held = await client.lock(world.name()).acquire(timeout=0)
        etcd_server.call("lease/revoke", ID=etcd_server.leases()[0])
        other = await client.lock(world.name()).acquire(timeout=0)
        assert held.lost_reason is LossReason.SESSION_ENDED
        await other.renew()

    async def test_a_key_that_somebody_deletes_is_a_loss_of_that_lock_alone(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        client = world.client()
        lost = await client.lock("lost", ttl=1).acquire(timeout=0)
        kept = await client.lock("kept", ttl=1).acquire(timeout=0)
        etcd_server.call("kv/deleterange", key=f"dibs/locks/default/lost/{lost.token}")
        assert await lost.lost.wait(lost.ttl)
        assert lost.lost_reason is LossReason.TAKEN
        await kept.renew()
        assert etcd_server.keys_under() == [f"dibs/locks/default/kept/{kept.token}"]

    async def test_the_ttl_is_what_etcd_gives(self, world: World) -> None:
        for asked, given in ((0.5, 0.5), (1, 1.5), (2.2, 2.5), (2.5, 2.5), (30, 30.5)):
            assert (await world.crashed(world.name(), asked)).ttl == given


class TestLeaders(EtcdKind):
    """A leader that was cut off goes on renewing for a while; what it says does not count."""

    async def test_a_grant_under_another_leader_than_the_last_renewal_renews_once_more(
        self, world: World, calls: Counter[str]
    ) -> None:
        client = world.client()
        await (await client.lock("a").acquire(timeout=0)).release()
        leases = store_of(world, client)._keeper.leases
        pretend_former_leader(leases)
        calls.clear()
        lease = await client.lock("a").acquire(timeout=0)
        assert calls == {"kv/txn": 2, "lease/keepalive": 1}
        assert leases._shared[31].term == next(iter(leases._made.values())).term > 0
        await lease.renew()

    async def test_a_renewal_counts_only_if_a_majority_answers_under_the_same_leader(
        self, world: World, calls: Counter[str]
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        pretend_former_leader(store_of(world, client)._keeper.leases)
        calls.clear()
        await lease.renew()
        assert calls == {"kv/txn": 2, "lease/keepalive": 1}


class TestWaiting(EtcdKind):
    """A waiter watches the client just before it, and is never granted more than it can keep."""

    async def test_a_waiter_with_a_shorter_ttl_than_the_hold_is_granted_a_lease_that_lives(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        held = await world.crashed("a", 30)
        waiter = world.begin(world.client().lock("a", ttl=0.5).acquire)
        await world.until(lambda: waiters_are(world, "a", 1))
        began = world.now()
        await world.until(lambda: later(world, began + 1.8))  # its lease of etcd would have ended long ago
        await world.until(lambda: waiters_are(world, "a", 1))
        await world.store.release("a", held.token, STEP)
        lease = await waiter.result()
        await lease.renew()
        assert etcd_server.keys_under() == [f"dibs/locks/default/a/{lease.token}"]

    async def test_a_crowd_costs_the_same_few_calls_for_each_hand_over(self, world: World, calls: Counter[str]) -> None:
        crowd = 32
        held = await world.crashed("a", 30)
        waiters = []
        for number in range(crowd):
            waiters.append(world.begin(lambda: hold_once(world.client(), "a")))
            await world.until(lambda number=number: waiters_are(world, "a", number + 1))  # type: ignore[misc]
        calls.clear()
        began = world.now()
        await world.store.release("a", held.token, STEP)
        fences = [await waiter.result() for waiter in waiters]
        assert fences == sorted(fences)
        alive = crowd * ((world.now() - began) / 0.5 + 2)  # each is a client, and keeps its ticket and its lease
        assert calls["kv/txn"] <= 2 * crowd + 1 + alive
        assert calls["kv/range"] + calls["watch"] <= alive

    async def test_a_waiter_behind_one_that_gives_up_watches_the_next(self, world: World) -> None:
        held = await world.crashed("a", 30)
        quitter = world.ask("a", queue=True)
        assert isinstance(await world.store.grant(quitter, STEP), Busy)
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(lambda: waiters_are(world, "a", 2))
        await world.store.release("a", quitter.token, STEP)
        await world.until(lambda: waiters_are(world, "a", 1))
        await world.store.release("a", held.token, STEP)
        assert (await waiter.result()).fence > held.fence

    async def test_a_place_in_line_that_somebody_deletes_is_taken_again(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        held = await world.crashed("a", 30)
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(lambda: waiters_are(world, "a", 1))
        waiting = next(key for key in etcd_server.keys_under() if held.token not in key)
        etcd_server.call("kv/deleterange", key=waiting)
        await world.store.release("a", held.token, STEP)
        lease = await waiter.result()
        await lease.renew()

    async def test_a_history_that_was_compacted_ends_a_watch_and_not_the_wait(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        await world.crashed("a", 30)
        ask = world.ask("a", queue=True)
        busy = await world.store.grant(ask, STEP)
        assert isinstance(busy, Busy)
        for _ in range(3):
            last = etcd_server.call("kv/put", key="other", value="")["header"]["revision"]
        etcd_server.call("kv/compaction", revision=last)
        with took(STEP - 1):
            await world.store.wait(ask, busy, STEP)
        assert isinstance(await world.store.grant(ask, STEP), Busy)

    async def test_a_grant_after_a_wait_lasts_for_the_whole_ttl(self, world: World, etcd_server: EtcdServer) -> None:
        held = await world.crashed("a", 30)
        waiter = world.begin(world.client().lock("a", ttl=60).acquire)
        await world.until(lambda: waiters_are(world, "a", 1))
        await world.store.release("a", held.token, STEP)
        lease = await waiter.result()
        holder = (await world.store.show("a", STEP)).holder
        assert holder is not None
        assert holder.expires_in is not None
        assert holder.expires_in > 10 * WAITER_TTL
        assert lease.ttl == 60.5


class TestUnknown(EtcdKind):
    """What was sent may have happened, now or later."""

    async def test_a_grant_whose_answer_was_lost_is_the_same_grant_when_it_is_asked_for_again(
        self, world: World, etcd_server: EtcdServer, fault_proxy: Proxied
    ) -> None:
        proxy = fault_proxy(etcd_server)
        store = self.open_store(f"etcd://127.0.0.1:{proxy.port}", "default", world.runtime)
        await world.crashed("warm", 30)
        ask = world.ask("a")
        proxy.drop_reply(to=b"kv/txn", times=2, end="rst")  # what the port sends again is lost too
        with pytest.raises(OutcomeUnknown):
            await store.grant(ask, STEP)
        made = (await world.store.show("a", STEP)).fence
        answer = await store.grant(ask, STEP)
        assert isinstance(answer, Grant)
        assert answer.fence == made
        await store.close()
        assert [key for key in etcd_server.keys_under() if "/a/" in key] == []

    async def test_a_grant_that_arrives_after_its_release_ends_by_itself_under_a_lease_that_others_keep(
        self, world: World, etcd_server: EtcdServer, fault_proxy: Proxied
    ) -> None:
        proxy = fault_proxy(etcd_server)
        store = self.open_store(f"etcd://127.0.0.1:{proxy.port},127.0.0.1:{etcd_server.port}", "default", world.runtime)
        warm = world.ask("warm", ttl=0.5)
        assert isinstance(await store.grant(warm, STEP), Grant)
        late = world.ask("late", ttl=0.5)
        with proxy.black_hole("requests"):
            assert isinstance(await store.grant(late, 0.4), Grant)  # by the other server
            await store.release("late", late.token, STEP)
        # Now it arrives, or it never does: an etcd that has seen the end of the connection may not carry it out.
        put_late(etcd_server, late.token)
        warm_claim = Claim("warm", warm.token, (await world.store.show("warm", STEP)).fence, 0.5)
        began = world.now()
        while etcd_server.keys_under("dibs/locks/default/late/"):
            assert await store.renew([warm_claim], STEP) == [None]
            await world.sleep(0.1)
            assert world.now() - began < 5
        await store.close()

    async def test_a_holder_that_is_cut_off_is_told_before_another_is_granted(
        self, world: World, etcd_server: EtcdServer, fault_proxy: Proxied
    ) -> None:
        proxy = fault_proxy(etcd_server)
        client = Client(self.open_store(f"etcd://127.0.0.1:{proxy.port}", "default", world.runtime), world.runtime)
        for direction in ("requests", "replies"):
            lease = await client.lock("a", ttl=0.5).acquire(timeout=STEP)
            with proxy.black_hole(direction):
                other = await world.client().lock("a").acquire(timeout=STEP)
                assert lease.lost_reason is LossReason.EXPIRED
                assert other.fence > lease.fence
                await other.release()
            with pytest.raises(LeaseLost):
                await lease.release()
        await client.close()

    async def test_a_server_that_hangs_exceeds_no_budget(
        self, world: World, etcd_server: EtcdServer, fault_proxy: Proxied
    ) -> None:
        proxy = fault_proxy(etcd_server)
        client = Client(self.open_store(f"etcd://127.0.0.1:{proxy.port}", "default", world.runtime), world.runtime)
        await (await client.lock("a").acquire(timeout=STEP)).release()
        with proxy.black_hole("replies"):

            async def attempt() -> float:
                began = world.now()
                with pytest.raises(StoreUnavailable):
                    await client.lock("a").acquire(timeout=0.3)
                return world.now() - began

            await world.measured(attempt, at_least=0.2, at_most=0.35)
        await client.close()
        await world.until(lambda: keys_are(etcd_server, [], "dibs/locks/"), 5.0)

    async def test_a_release_whose_answer_was_lost_is_no_loss(
        self, world: World, etcd_server: EtcdServer, fault_proxy: Proxied
    ) -> None:
        proxy = fault_proxy(etcd_server)
        client = Client(self.open_store(f"etcd://127.0.0.1:{proxy.port}", "default", world.runtime), world.runtime)
        lease = await client.lock("a").acquire(timeout=STEP)
        fault = proxy.drop_reply(to=b"kv/deleterange", end="rst")
        await lease.release()
        assert fault.count == 1
        assert not lease.lost
        again = await client.lock("a").acquire(timeout=STEP)
        await world.client().evict("a", fence=again.fence)
        proxy.drop_reply(to=b"kv/deleterange", end="rst")
        with pytest.raises(LeaseLost):
            await again.release()
        await client.close()


class TestTold(EtcdKind):
    """What etcd has said of a grant counts, whatever becomes of the next request."""

    async def test_the_renewal_that_finds_a_grant_broken_knows_why_from_the_same_answer(
        self, world: World, calls: Counter[str]
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        assert await world.client().evict("a", fence=lease.fence)
        calls.clear()
        with pytest.raises(LeaseLost):
            await lease.renew()
        assert lease.lost_reason is LossReason.EVICTED
        assert calls["kv/txn"] == 1

    async def test_of_two_broken_one_after_the_other_both_are_told_that_they_were_broken(self, world: World) -> None:
        leases = []
        for _ in range(2):
            leases.append(await world.client().lock("a").acquire(timeout=0))
            assert await world.client().evict("a", fence=leases[-1].fence)
        for lease in leases:
            with pytest.raises(LeaseLost):
                await lease.renew()
            assert lease.lost_reason is LossReason.EVICTED

    async def test_a_loss_is_told_although_others_could_not_be_asked_for(
        self, world: World, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        claims = [await world.crashed(f"{number}", 30) for number in range(TOGETHER + 1)]
        etcd_server.call("kv/deleterange", key=f"dibs/locks/default/0/{claims[0].token}")
        told: list[tuple[str, str, LossReason]] = []
        world.store.on_loss(lambda *loss: told.append(loss))
        refuse_from(monkeypatch, "kv/txn", 2)
        with pytest.raises(PartlyRenewed) as partly:
            await world.store.renew(claims, STEP)
        assert told == [("0", claims[0].token, LossReason.TAKEN)]
        assert partly.value.answers[:2] == [LossReason.TAKEN, None]
        assert isinstance(partly.value.answers[-1], StoreUnavailable)

    async def test_a_release_that_finds_nothing_is_a_loss_although_nobody_says_why(
        self, world: World, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        etcd_server.call("kv/deleterange", key=f"dibs/locks/default/a/{lease.token}")
        with monkeypatch.context() as patch:
            refuse_from(patch, "kv/txn", 1)
            with pytest.raises(LeaseLost):
                await lease.release()
        assert lease.lost_reason is LossReason.TAKEN

    async def test_a_holder_that_waited_is_shown_since_it_holds(self, world: World) -> None:
        held = await world.crashed("a", 30)
        waiter = world.begin(world.client().lock("a").acquire)
        await world.until(lambda: waiters_are(world, "a", 1))
        await world.sleep(0.05)
        let_go_at = wall_clock()
        await world.store.release("a", held.token, STEP)
        await waiter.result()
        holder = (await world.store.show("a", STEP)).holder
        assert holder is not None
        assert holder.since >= let_go_at


def refuse_from(monkeypatch: pytest.MonkeyPatch, method: str, count: int) -> None:
    """The calls of *method* fail, from that *count* on."""
    call, seen = Etcd.call, 0

    async def refused(self: Etcd, called: str, *rest: Any) -> Any:
        nonlocal seen
        seen += called == method
        if called == method and seen >= count:
            raise StoreUnavailable(str(self), "cut")
        return await call(self, called, *rest)

    monkeypatch.setattr(Etcd, "call", refused)


class TestHandOver(EtcdKind):
    """A key moves from lease to lease, and keeps its fence."""

    async def test_a_lease_that_was_handed_over_leaves_no_lease_of_etcd_behind(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        ours, theirs = world.client(), world.client()
        taken = await ours.lock("a").acquire(timeout=0)
        await (await theirs.resume(await taken.detach())).release()
        await ours.lock("b").acquire(timeout=0)
        given_back = await detached(ours, "c")
        await world.store.release("c", given_back.token, STEP)
        broken = await detached(ours, "d")
        assert await theirs.evict("d", fence=broken.fence)
        await ours.close()
        await theirs.close()
        await world.store.close()
        empty = [lease for lease in etcd_server.leases() if not keys_of(etcd_server, lease)]
        assert empty == []

    async def test_a_detached_lease_outlives_the_leases_of_its_client(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        ours, theirs = world.client(), world.client()
        lease = await ours.lock("a").acquire(timeout=0)
        text = await lease.detach()
        await ours.close()
        assert len(etcd_server.leases()) == 1
        resumed = await theirs.resume(text)
        assert resumed.fence == lease.fence
        await resumed.release()
        assert etcd_server.keys_under() == []

    async def test_a_lease_that_two_keep_lives_on_with_either(self, world: World) -> None:
        ours, theirs = world.client(), world.client()
        lease = await ours.lock("a").acquire(timeout=0)
        resumed = await theirs.resume(lease.to_str())
        await lease.renew()
        await resumed.renew()
        await store_of(world, ours)._keeper.leases.revoke(
            next(iter(store_of(world, ours)._keeper.leases.all())).id, STEP
        )
        await resumed.renew()

    async def test_what_was_taken_over_is_not_ended_with_the_lease_that_its_first_holder_forgot(
        self, world: World
    ) -> None:
        ours, theirs = world.client(), world.client()
        kept = await ours.lock("kept", ttl=1).acquire(timeout=0)
        forgotten = await ours.lock("a", ttl=1).acquire(timeout=0)
        resumed, token = await theirs.resume(forgotten.to_str()), forgotten.token
        del forgotten  # it is no longer renewed here
        tickets = store_of(world, ours)._keeper.tickets
        await world.until(lambda: is_dropped(tickets, token))
        assert kept.fence
        await resumed.renew()

    async def test_a_sweep_does_not_end_a_lease_that_is_resumed_at_that_moment(
        self, world: World, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, theirs = world.client(), world.client()
        keep = store_of(world, ours)._keeper
        kept = await ours.lock("kept", ttl=30).acquire(timeout=0)
        taken = await ours.lock("a", ttl=30).acquire(timeout=0)
        text, token, read = taken.to_str(), taken.token, keep.read
        resumed: list[Lease] = []

        async def read_and_resumed(steps: Any, until: float) -> Any:
            found = await read(steps, until)
            if not resumed:
                resumed.append(await theirs.resume(text))
            return found

        ticket = keep.tickets.get(token)
        assert ticket is not None
        keep.tickets.drop(token)
        keep.tickets.put(ticket._replace(until=world.now()))
        monkeypatch.setattr(keep, "read", read_and_resumed)
        await keep._end(
            keep.tickets.overdue(world.now()), {lease.id for lease in keep.leases.all()}, world.now() + STEP
        )
        assert await is_there(etcd_server, taken._claim)
        await resumed[0].renew()
        await kept.renew()


class TestCompare(EtcdKind):
    """The condition that a grant still holds, for a transaction of the caller's own."""

    async def test_a_guarded_write_happens_only_while_the_lease_holds(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        lease = await world.client().lock("L/x").acquire(timeout=0)
        body = guarding.guarded(lease, guarding.put("/app/primary", "db1"))
        guarding.check(lease, etcd_server.call("kv/txn", **body))
        assert etcd_server.keys_under("/app/") == ["/app/primary"]
        late = guarding.guarded(lease, guarding.put("/app/late", b"db1"))
        await world.client().evict("L/x", fence=lease.fence)
        other = await world.client().lock("L/x").acquire(timeout=0)
        with pytest.raises(StaleFence) as stale:
            guarding.check(lease, etcd_server.call("kv/txn", **late))
        assert (stale.value.fence, stale.value.current) == (lease.fence, other.fence)
        await other.release()
        with pytest.raises(StaleFence):
            guarding.check(lease, etcd_server.call("kv/txn", **late))
        assert etcd_server.keys_under("/app/") == ["/app/primary"]

    async def test_a_condition_of_the_callers_own_is_no_stale_fence(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        body = guarding.guarded(lease, guarding.put("/app/primary", "db1"))
        body["compare"].append({"key": "L2FwcA==", "target": "VERSION", "version": "1"})
        answer = etcd_server.call("kv/txn", **body)
        guarding.check(lease, answer)
        assert not answer.get("succeeded")

    async def test_the_condition_of_a_lost_lease_is_not_given_out(self, world: World) -> None:
        lease = await world.client().lock("a").acquire(timeout=0)
        await world.client().evict("a", fence=lease.fence)
        with pytest.raises(LeaseLost):
            await lease.renew()
        with pytest.raises(LeaseLost):
            lease.compare()


class TestLooking(EtcdKind):
    """Many names, keys of others, and evictions."""

    async def test_holders_are_read_page_by_page(
        self, world: World, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dibs.stores.etcd.requests.PAGE", 3)
        for number in range(8):
            await world.crashed(f"many/{number}", 30)
            assert isinstance(await world.store.grant(world.ask(f"many/{number}", queue=True), STEP), Busy)
        found = await world.store.holders("many/", STEP)
        assert [holder.name for holder in found] == [f"many/{number}" for number in range(8)]
        assert all(holder.fence and holder.expires_in for holder in found)

    async def test_a_history_that_was_compacted_between_two_pages_is_read_anew(
        self, world: World, etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dibs.stores.etcd.requests.PAGE", 3)
        for number in range(5):
            await world.crashed(f"{number}", 30)
        call, compacted = Etcd.call, list[str]()

        async def compacted_in_between(self: Etcd, method: str, *rest: Any) -> Any:
            answer = await call(self, method, *rest)
            if method == "kv/range" and not compacted:
                revision = etcd_server.call("kv/put", key="other", value="")["header"]["revision"]
                etcd_server.call("kv/compaction", revision=revision)
                compacted.append(revision)
            return answer

        monkeypatch.setattr(Etcd, "call", compacted_in_between)
        assert len(await world.store.holders("", STEP)) == 5
        assert compacted

    async def test_a_key_that_another_program_put_there_is_a_lock_that_is_taken(
        self, world: World, etcd_server: EtcdServer
    ) -> None:
        etcd_server.call("kv/put", key="dibs/locks/default/a/theirs", value="x")
        busy = await world.store.grant(world.ask("a"), STEP)
        assert isinstance(busy, Busy)
        assert busy.holder is not None
        assert "another program" in busy.holder.note
        [holder] = await world.store.holders("", STEP)
        assert (holder.name, holder.expires_in) == ("a", None)

    async def test_names_stand_in_keys_as_people_write_them(self, world: World, etcd_server: EtcdServer) -> None:
        claim = await world.crashed("invoice:42 a/b é", 30)
        assert etcd_server.keys_under() == [f"dibs/locks/default/invoice:42 a%2Fb %C3%A9/{claim.token}"]

    async def test_an_eviction_is_remembered_and_ends_by_itself(self, world: World, etcd_server: EtcdServer) -> None:
        held = await world.crashed("a", 30)
        assert await world.client().evict("a", fence=held.fence, reason="it hangs")
        assert etcd_server.keys_under() == ["dibs/evicted/default/a", f"dibs/evicted/default/a/{held.token}"]
        [ttl] = [
            int(etcd_server.call("lease/timetolive", ID=lease)["grantedTTL"])
            for lease in etcd_server.leases()
            if etcd_server.call("lease/timetolive", ID=lease, keys=True).get("keys")
        ]
        assert 6 * 86_400 < ttl < 8 * 86_400


class TestWhereItIs:
    """Servers, users and TLS."""

    def test_a_dead_server_in_the_list_is_passed_over(self, etcd_server: EtcdServer) -> None:
        dead = Port()
        with dibs.connect(f"etcd://127.0.0.1:{dead.number},127.0.0.1:{etcd_server.port}") as client:
            client.lock("a").acquire(timeout=0).release()
        with dibs.connect(f"etcd://127.0.0.1:{dead.number}") as client, pytest.raises(StoreUnavailable) as caught:
            client.lock("a").acquire(timeout=0)
        assert not isinstance(caught.value, OutcomeUnknown)
        dead.give_back()

    def test_servers_that_take_only_small_transactions_are_sent_small_ones(self) -> None:
        with (
            EtcdServer(arguments=[*QUICK, "--max-txn-ops", "8"]) as server,
            dibs.connect(server.url) as client,
            dibs.connect(server.url) as other,
        ):
            leases = [client.lock(f"{number}", ttl=30).acquire(timeout=0) for number in range(20)]
            answers = run(client._core._store.renew([lease._core._claim for lease in leases], STEP))
            assert answers == [None] * 20
            with client.semaphore("s", 2), other.semaphore("s", 2):
                pass
            waiting = threading.Thread(target=lambda: other.lock("0").acquire(timeout=10).release())
            waiting.start()
            until(lambda: len(client.show("0").waiting) == 1, "it waits")
            leases[0].release()
            waiting.join()

    def test_a_url_has_no_path(self) -> None:
        with pytest.raises(Misuse, match="no databases"):
            dibs.connect("etcd://127.0.0.1/0")

    @pytest.fixture(scope="class")
    @classmethod
    def tls_server(cls, certificates: Certificates) -> Iterator[EtcdServer]:
        with EtcdServer(tls=certificates, client_certificates=True) as server:
            yield server

    def test_tls_and_a_certificate_of_our_own(self, tls_server: EtcdServer, certificates: Certificates) -> None:
        ours = f"&cert={certificates.client}&key={certificates.key(certificates.client)}"
        with dibs.connect(tls_server.url + ours) as client:
            lease = client.lock("a").acquire(timeout=0)
            assert client.show("a").fence == lease.fence
        for wrong in (tls_server.url, f"etcds://127.0.0.1:{tls_server.port}?verify=yes{ours}"):
            with dibs.connect(wrong) as client, pytest.raises(StoreUnavailable):
                client.lock("a").acquire(timeout=0)
        with dibs.connect(f"etcds://127.0.0.1:{tls_server.port}?verify=no{ours}") as client:
            client.lock("a").acquire(timeout=0).release()

    def test_one_connection_with_tls_serves_one_request_after_the_other(
        self, tls_server: EtcdServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dials: list[Endpoint] = []
        dial = BlockingDial.__call__

        async def counted(self: BlockingDial, endpoint: Endpoint, until: float) -> BlockingWire:
            dials.append(endpoint)
            return await dial(self, endpoint, until)

        monkeypatch.setattr(BlockingDial, "__call__", counted)
        ours = f"&cert={certificates.client}&key={certificates.key(certificates.client)}"
        with dibs.connect(tls_server.url + ours) as client:
            for _ in range(5):
                client.lock("a").acquire(timeout=0).release()
        assert len(dials) == 1  # what TLS itself has to say after a handshake is not taken for the server's end

    def test_users(self) -> None:
        with EtcdServer() as server:
            with_users(server)
            with dibs.connect(f"etcd://me:se%40cret@127.0.0.1:{server.port}") as client:
                lease = client.lock("a").acquire(timeout=0)
                waiting = threading.Thread(target=lambda: client.lock("a").acquire(timeout=10).release())
                waiting.start()  # a watch has a user too
                until(lambda: len(client.show("a").waiting) == 1, "it waits")
                lease.release()
                waiting.join(10)
                assert not waiting.is_alive()
                server.kill9()
                server.start()  # it has forgotten all logins
                client.lock("a").acquire(timeout=5).release()
            for user, says in (("me:wrong", "authentication failed"), ("you:se%40cret", "permission denied; .*role")):
                with dibs.connect(f"etcd://{user}@127.0.0.1:{server.port}") as client:
                    with pytest.raises(StoreUnavailable, match=says) as caught:
                        client.lock("a").acquire(timeout=0)
                    assert "se@cret" not in str(caught.value)
            with dibs.connect(server.url) as client, pytest.raises(StoreUnavailable, match="user name is empty"):
                client.lock("a").acquire(timeout=0)


def test_the_command_line_lists_shows_breaks_and_runs(etcd_server: EtcdServer, tmp_path: Path) -> None:
    box = Sandbox(tmp_path)
    box.env["DIBS_URL"] = etcd_server.url
    running = box.start("run", "deploy/web", "--ttl", "2", "--", "sleep", "60")
    try:
        [holder] = until_found(lambda: box.json("ls", "deploy/"))
        assert (holder["name"], holder["pid"]) == ("deploy/web", running.pid)
        shown = box.dibs("show", "deploy/web")
        assert str(running.pid) in shown.stdout
        assert box.dibs("run", "deploy/web", "--timeout", "0", "--", "true").returncode != 0
        assert box.dibs("break", "deploy/web", "--fence", str(holder["fence"]), "--reason", "it hangs").returncode == 0
        running.communicate(timeout=20)
        assert running.returncode != 0, "it was told that it had lost the lock"
        assert box.dibs("run", "deploy/web", "--timeout", "0", "--", "true").returncode == 0
        assert box.json("ls") == []
        text = box.dibs("acquire", "deploy/web", "--ttl", "30").stdout.strip()
        assert len(etcd_server.leases()) == 2, "its own, and that of the eviction"
        assert box.dibs("release", DIBS_TOKEN=text).returncode == 0
        assert etcd_server.keys_under("dibs/locks/") == []
    finally:
        box.clean_up()


def until_found(look: Callable[[], list[Any]]) -> list[Any]:
    found: list[Any] = []

    def is_there() -> bool:
        found[:] = look()
        return bool(found)

    until(is_there, "it is there")
    return found


def test_a_forked_child_leaves_the_leases_of_its_parent_alone(etcd_server: EtcdServer) -> None:
    with dibs.connect(etcd_server.url) as client:
        lease = client.lock("a").acquire(timeout=0)
        if not (pid := os.fork()):
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    lease.release()
                except Misuse:
                    with client.lock("child", ttl=5):
                        client.close()
                        code = 0
            os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        lease.renew()
        assert etcd_server.keys_under() == [f"dibs/locks/default/a/{lease.token}"]
        assert len(etcd_server.leases()) == 1


# --- looking at the server -------------------------------------------------------------------------------------


async def keys_are(server: EtcdServer, wanted: list[str], prefix: str = "", *, gone: bool = True) -> bool:
    return (server.keys_under(prefix) == wanted) is gone


async def is_there(server: EtcdServer, claim: Claim) -> bool:
    return f"dibs/locks/default/{claim.name}/{claim.token}" in server.keys_under()


async def detached(client: Client, name: str) -> Claim:
    lease = await client.lock(name).acquire(timeout=0)
    claim = lease._claim
    await lease.detach()
    return claim


def keys_of(server: EtcdServer, lease: str) -> list[str]:
    return list(server.call("lease/timetolive", ID=lease, keys=True).get("keys", []))


async def is_dropped(tickets: EtcdTickets, token: str) -> bool:
    return tickets.get(token) is None


async def later(world: World, moment: float) -> bool:
    return world.now() > moment


async def hold_once(client: Client, name: str) -> int:
    async with client.lock(name) as lease:
        return lease.fence


def pretend_former_leader(leases: EtcdLeases) -> None:
    """Pretend that the last renewals came from a former leader."""
    for asked, lease in leases._shared.items():
        former = lease._replace(term=lease.term - 1, kept_at=lease.kept_at + 0.4)
        leases._shared[asked] = leases._made[lease.id] = former


def put_late(server: EtcdServer, token: str) -> None:
    """What a request does that arrives after its release: the key is there again, under the client's lease."""
    lease = next(lease for lease in server.leases() if server.call("lease/timetolive", ID=lease, keys=True).get("keys"))
    server.call("kv/put", key=f"dibs/locks/default/late/{token}", value=json.dumps({}), lease=lease)


def with_users(server: EtcdServer) -> None:
    """A user with the rights that locks need, one with no rights, and root."""
    for user, password, role in (("root", "root", "root"), ("me", "se@cret", "locks"), ("you", "se@cret", "none")):
        server.call("auth/user/add", name=user, password=password)
        server.call("auth/role/add", name=role)
        if role == "locks":
            span = {"key": "ZGlicy8=", "range_end": "ZGliczA="}
            server.call("auth/role/grant", name=role, perm={"permType": "READWRITE", **span})
        server.call("auth/user/grant", user=user, role=role)
    server.call("auth/enable")
