"""The ZooKeeper store on a real server: the contract, its nodes, its costs, and which client owns which session."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

import dibs
from dibs.core import acquiring
from dibs.core.client import Client
from dibs.errors import LossReason, Misuse, NotSupported, OutcomeUnknown, StoreUnavailable
from dibs.share import SHARED, Share
from dibs.stores.store import Ask, Busy, Claim, Grant, PartlyRenewed
from dibs.stores.zookeeper import grant as zookeeper_grant
from dibs.stores.zookeeper.paths import guid
from dibs.stores.zookeeper.port.requests import SessionEnded, together
from dibs.stores.zookeeper.port.session import ZooKeeperSession
from dibs.stores.zookeeper.states import WatchState
from dibs.stores.zookeeper.store import ZooKeeperStore
from dibs.stores.zookeeper.ticket import ZooKeeperTicket
from dibs.testing.contract import StoreContract
from dibs.testing.contract.suite import Fixtures, Kind
from dibs.testing.contract.world import STEP, World
from servers.ports import Port
from servers.process import until
from servers.zookeeper import HOST, ZooKeeperServer
from stores.rows import steps

CHROOTS = itertools.count(1)

AT_ONCE = 5.0
"""Seconds, on a busy machine; the leases here have a ttl of 30 s."""

SOON = 1.0
"""Seconds for a step that is interrupted."""

NEVER = 60.0
"""Seconds: longer than any test waits."""

ENOUGH = 200
"""More calls than a step makes."""


class Called:
    """Tests in which a waiter that is not called waits in vain: if it looked by itself, that would hide a lost call."""

    @pytest.fixture(autouse=True)
    def never_look_uncalled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(zookeeper_grant, "UNTIL_CALLED", NEVER)
        monkeypatch.setattr(acquiring, "LONGEST_WAIT", NEVER)


class TestContract(Called, StoreContract):
    """As a user that has the rights that the docs name, and no others."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, zookeeper: ZooKeeperServer) -> str:
        return as_user(zookeeper, allowed(zookeeper, create=True))


USER, PASSWORD = "locks", "secret"


def allowed(server: ZooKeeperServer, **rights: bool) -> str:
    """A chroot where the user has *rights*; no other user has any there or above."""
    top, chroot = f"/guarded{next(CHROOTS)}", f"/guarded{next(CHROOTS)}"
    root = KazooClient(f"{HOST}:{server.port}", auth_data=[("digest", "root:root")])
    root.start()
    try:
        ours = [make_digest_acl("root", "root", all=True)]
        root.create(top, acl=ours)
        root.create(top + chroot, acl=[*ours, make_digest_acl(USER, PASSWORD, **rights)])
    finally:
        root.stop()
        root.close()
    return top + chroot


def as_user(server: ZooKeeperServer, chroot: str) -> str:
    """The URL with that user in it."""
    return f"{server.url}{chroot}".replace("://", f"://{USER}:{PASSWORD}@")


def test_what_a_user_may_not_do_is_told_as_that(zookeeper: ZooKeeperServer) -> None:
    with dibs.connect(as_user(zookeeper, allowed(zookeeper, read=True))) as client:
        with pytest.raises(StoreUnavailable, match="the right to create nodes in the chroot"):
            client.lock("a").acquire(timeout=1)
        assert client.holders() == []
    chroot = allowed(zookeeper, create=True)
    with dibs.connect(as_user(zookeeper, chroot)) as client, client.lock("a"):
        stranger = f"{zookeeper.url}{chroot}".replace("://", "://you:secret@")
        with dibs.connect(stranger) as other:
            for step in (other.lock("a").try_acquire, other.holders, lambda: other.show("a")):
                with pytest.raises(StoreUnavailable, match="private to the user"):
                    step()


class ZooKeeperKind(Kind, Fixtures):
    """Tests in blocking and async code on one server, each with a chroot of its own."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def chroot(self) -> str:
        return f"/tests/{next(CHROOTS)}"

    @pytest.fixture
    def url(self, zookeeper: ZooKeeperServer, chroot: str) -> str:
        return zookeeper.url + chroot

    @pytest.fixture
    def raw(self, zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
        """Somebody else's client of the same server."""
        client = KazooClient(f"{HOST}:{zookeeper.port}")
        client.start()
        yield client
        client.stop()
        client.close()


class TestNodes(ZooKeeperKind):
    async def test_a_lock_is_an_ephemeral_node_that_does_not_show_its_token(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        ask = world.ask("a/b")
        grant = await world.store.grant(ask, STEP)
        assert isinstance(grant, Grant)
        [node] = raw.get_children(f"{chroot}/default/a%2Fb")
        data, stat = raw.get(f"{chroot}/default/a%2Fb/{node}")
        assert stat.ephemeralOwner
        assert stat.czxid == grant.fence
        assert ask.token.encode() not in node.encode() + data

    async def test_nothing_is_left_of_tries_and_waiters_that_gave_up(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        held = await world.crashed("a", 30)
        for _ in range(3):
            assert await world.client().lock("a").try_acquire() is None
            with pytest.raises((dibs.NotAcquired, StoreUnavailable)):  # it may not even be connected by then
                await world.client().lock("a").acquire(timeout=0.02)
        await world.until(functools.partial(has_children, raw, f"{chroot}/default/a", 1))  # the keeper may clean up
        await world.store.release(held.name, held.token, STEP)
        assert raw.get_children(f"{chroot}/default/a") == []

    async def test_a_parent_that_the_server_removed_is_made_anew_and_fences_rise_all_the_same(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        """The parent's counter begins at 0 again, but the fence does not come from it."""
        fences = []
        for gone in (f"{chroot}/default/a", f"{chroot}/default", ""):
            ask = world.ask("a")
            grant = await world.store.grant(ask, STEP)
            assert isinstance(grant, Grant)
            fences.append(grant.fence)
            assert raw.get_children(f"{chroot}/default/a")[0].endswith("-0000000000")
            await world.store.release("a", ask.token, STEP)
            if gone:
                raw.delete(gone, recursive=True)
        assert fences == sorted(set(fences))

    async def test_nodes_of_others_under_the_parent_are_not_in_the_queue(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        await world.crashed("b", 30)
        raw.create(f"{chroot}/default/a/0", makepath=True)
        raw.create(f"{chroot}/default/a/{'x' * 32}-notes")
        assert isinstance(await world.store.grant(world.ask("a"), STEP), Grant)

    async def test_evictions_of_a_namespace_are_kept_in_one_node(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        for name in ("a", "b"):
            held = await world.crashed(name, 30)
            assert await world.store.evict(name, held.fence, f"{name} hangs", STEP)
        evicted = [(await world.store.show(name, STEP)).evicted for name in ("a", "b")]
        assert [each.reason for each in evicted if each] == ["a hangs", "b hangs"]
        assert raw.get_children(f"{chroot}/default/%") == []


class TestSessions(ZooKeeperKind):
    async def test_one_session_serves_all_locks_with_about_the_same_ttl(
        self, world: World, zookeeper: ZooKeeperServer
    ) -> None:
        before = zookeeper.sessions()
        for number, ttl in enumerate((30, 30, 29, 24)):
            await world.crashed(f"a{number}", ttl)
        assert len(zookeeper.sessions() - before) == 1
        await world.crashed("short", 5)
        assert len(zookeeper.sessions() - before) == 2

    async def test_a_lease_is_shorter_than_its_session_by_half_a_tick(
        self, world: World, zookeeper: ZooKeeperServer
    ) -> None:
        before = zookeeper.sessions()
        for ttl, timeout in ((30, 31_000), (1.5, 2_000)):
            held = await world.crashed(f"ttl {ttl}", ttl)
            assert ttl <= held.ttl < ttl + 0.01
            lines = [line for line in zookeeper.says("cons").splitlines() if f"to={timeout}" in line]
            assert len(lines) == 1, zookeeper.says("cons")
        assert len(zookeeper.sessions() - before) == 2

    async def test_a_session_that_is_ended_from_outside_is_a_loss_at_once(
        self, world: World, zookeeper: ZooKeeperServer
    ) -> None:
        """The next waiter gets the lock, even if its own node was in the session that ended."""
        client, name = world.client(), world.name()
        held = await client.lock(name).acquire(timeout=0)
        ask = world.ask(name, queue=True)
        waiter = world.begin(functools.partial(wait_for, world, ask))
        await world.until(functools.partial(in_the_queue, world, name, 2))
        end_session(client, zookeeper)
        assert await held.lost.wait(AT_ONCE)
        assert held.lost_reason is LossReason.SESSION_ENDED
        assert (await waiter.result()).fence > held.fence
        again = await client.lock(world.name()).acquire(timeout=STEP)
        await again.renew()

    async def test_a_waiter_whose_session_ended_lines_up_anew(self, world: World, zookeeper: ZooKeeperServer) -> None:
        client, held = world.client(), await world.crashed(world.name(), 30)
        waiter = world.begin(client.lock(held.name).acquire)
        await world.until(functools.partial(in_the_queue, world, held.name, 2))
        end_session(client, zookeeper)
        await world.store.release(held.name, held.token, STEP)
        lease = await waiter.result()
        await lease.renew()
        assert lease.fence > held.fence

    async def test_an_evicted_holder_is_told_before_its_next_renewal(self, world: World) -> None:
        lease = await world.client().lock(world.name()).acquire(timeout=0)
        await world.sleep(1.2)  # a lock that was just taken is not watched yet
        assert await world.client().evict(lease.name, fence=lease.fence)
        assert await lease.lost.wait(AT_ONCE)
        assert lease.lost_reason is LossReason.EVICTED

    async def test_of_two_broken_one_after_the_other_both_are_told_that_they_were_broken(self, world: World) -> None:
        claims = []
        for _ in range(2):
            claims.append(await world.crashed("a", 30))
            assert await world.client().evict("a", fence=claims[-1].fence)
        assert await world.store.renew(claims, STEP) == [LossReason.EVICTED] * 2

    async def test_a_loss_is_told_although_nothing_more_is_answered(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[tuple[str, str, LossReason]] = []
        world.store.on_loss(lambda *loss: told.append(loss))
        claims = [await world.crashed(name, 30) for name in "ab"]
        assert await world.client().evict("a", fence=claims[0].fence)
        refuse_from(monkeypatch, 2)
        with pytest.raises(PartlyRenewed) as partly:
            await world.store.renew(claims, STEP)
        assert partly.value.answers[0] is LossReason.EVICTED
        assert told == [("a", claims[0].token, LossReason.EVICTED)]

    async def test_a_holder_whose_node_is_deleted_is_told_although_nothing_more_is_answered(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = world.client()
        lease = await client.lock("a").acquire(timeout=0)
        await world.until(lambda: is_watched(world, client, lease.token))
        refuse_from(monkeypatch, 1)
        [node] = raw.get_children(f"{chroot}/default/a")
        raw.delete(f"{chroot}/default/a/{node}")
        assert await lease.lost.wait(AT_ONCE)
        assert lease.lost_reason is LossReason.TAKEN
        monkeypatch.undo()

    async def test_a_node_deleted_by_hand_is_a_loss_and_nothing_is_taken_back(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        leases = [await world.client().lock(name).acquire(timeout=0) for name in ("a", "b")]
        [node] = raw.get_children(f"{chroot}/default/a")
        raw.delete(f"{chroot}/default/a/{node}")
        with pytest.raises(dibs.LeaseLost):
            await leases[0].renew()
        assert leases[0].lost_reason is LossReason.TAKEN
        await leases[1].renew()
        assert raw.get_children(f"{chroot}/default/a") == []

    async def test_those_that_hold_are_told_apart_from_those_that_do_not_in_one_renewal(
        self, world: World, raw: KazooClient, chroot: str
    ) -> None:
        claims = [await world.crashed(name, 30) for name in "abcdef"]
        for name in "be":
            raw.delete(f"{chroot}/default/{name}", recursive=True)
        answers = await world.store.renew(claims, STEP)
        assert [answer is None for answer in answers] == [True, False, True, True, False, True]

    async def test_closing_a_client_ends_its_session_and_its_threads(
        self, world: World, zookeeper: ZooKeeperServer
    ) -> None:
        threads, sessions = threading.active_count(), zookeeper.sessions()
        client = world.client()
        await client.lock(world.name()).acquire(timeout=0)
        await client.close()
        assert zookeeper.sessions() == sessions
        assert threading.active_count() <= threads

    async def test_a_store_that_was_dropped_ends_its_session(
        self, world: World, zookeeper: ZooKeeperServer, url: str
    ) -> None:
        sessions = zookeeper.sessions()
        store, threads = self.open_store(url, "default", world.runtime), threading.active_count()
        assert isinstance(await store.grant(world.ask("a"), STEP), Grant)
        assert zookeeper.sessions() != sessions
        del store
        gc.collect()
        await world.until(lambda: as_before(zookeeper, sessions))
        await world.until(lambda: no_more_than(threads))


class TestTheShortSession(ZooKeeperKind):
    """After a while of waiting a node moves to a session of its own."""

    async def test_it_keeps_its_place_and_holds_in_the_session_of_its_ttl(
        self, world: World, raw: KazooClient, chroot: str, zookeeper: ZooKeeperServer
    ) -> None:
        held, first, second = (world.ask("a", queue=True) for _ in range(3))
        grant = await world.store.grant(held, STEP)
        assert isinstance(grant, Grant)
        waits = world.begin(functools.partial(wait_for, world, first, await world.store.grant(first, STEP)))
        await world.until(lambda: has_sessions(raw, f"{chroot}/default/a", 2))
        behind = world.begin(functools.partial(wait_for, world, second, await world.store.grant(second, STEP)))
        await world.store.release("a", held.token, STEP)
        granted = await waits.result()
        assert not behind.over
        assert (granted.fence > grant.fence, granted.ttl) == (True, grant.ttl)
        assert isinstance(again := await world.store.grant(first, STEP), Grant)
        assert again.fence == granted.fence
        assert await world.store.renew([Claim("a", first.token, granted.fence, 30.0)], STEP) == [None]
        assert owner_of(raw, f"{chroot}/default/a", first.token) == owner_of(raw, f"{chroot}/default/a", second.token)
        await world.store.release("a", first.token, STEP)
        assert (await behind.result()).fence > granted.fence, "it came later, and has never changed its session"

    async def test_it_leaves_no_node_when_it_gives_up(self, world: World, raw: KazooClient, chroot: str) -> None:
        held = await world.crashed("a", 30)
        client = world.client()
        waits = world.begin(lambda: client.lock("a").acquire(timeout=1.5))
        await world.until(lambda: has_sessions(raw, f"{chroot}/default/a", 2))
        with pytest.raises(dibs.NotAcquired):
            await waits.result()
        await world.until(lambda: has_children(raw, f"{chroot}/default/a", 1))
        assert await world.store.release("a", held.token, STEP) is None

    @pytest.mark.parametrize("carried_out", [True, False])
    async def test_a_change_of_session_that_was_not_answered_is_found_out(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch, carried_out: bool
    ) -> None:
        held, waits = (world.ask("a", queue=True) for _ in range(2))
        assert isinstance(await world.store.grant(held, STEP), Grant)
        busy = await world.store.grant(waits, STEP)
        assert isinstance(busy, Busy)
        for out in (False, True):  # into the short session, and out of it
            lose_the_answer_of_a_move(monkeypatch, carried_out)
            waiting = world.begin(functools.partial(wait_once, world, waits, busy))
            if out:
                await world.store.release("a", held.token, STEP)
            await waiting.result()
            monkeypatch.undo()
        answer = await world.store.grant(waits, STEP)
        assert isinstance(answer, Grant)
        assert await has_children(raw, f"{chroot}/default/a", 1)
        assert await world.store.renew([Claim("a", waits.token, answer.fence, 30.0)], STEP) == [None]
        assert await world.store.release("a", waits.token, STEP) is None

    @pytest.mark.parametrize("watched", [True, False])
    async def test_a_move_out_of_it_that_was_not_answered_is_found_out_although_it_ended(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch, watched: bool
    ) -> None:
        """The node may have reached the other session, and would block the queue for as long as that lives."""
        held, waits = (world.ask("a", queue=True) for _ in range(2))
        assert isinstance(await world.store.grant(held, STEP), Grant)
        ticket = await in_the_short_session(world, waits)
        await world.store.release("a", held.token, STEP)
        lose_the_answer_of_a_move(monkeypatch, carried_out=True)
        with pytest.raises(OutcomeUnknown):
            await world.store.grant(waits, 1.0)
        monkeypatch.undo()
        store = world.store
        assert isinstance(store, ZooKeeperStore)
        assert ticket.short_session is not None
        ticket.short_session.ended.add(ticket.owner)
        if watched:
            await store._watch._look_at(ticket)
            assert await has_children(raw, f"{chroot}/default/a", 0)
        assert isinstance(await world.store.grant(waits, STEP), Grant)
        assert await has_children(raw, f"{chroot}/default/a", 1)

    @pytest.mark.parametrize("is_free", [True, False])
    @pytest.mark.parametrize("number", [0, 1])
    async def test_a_node_in_it_is_kept_when_the_session_that_it_is_to_hold_in_ends(
        self, world: World, raw: KazooClient, chroot: str, monkeypatch: pytest.MonkeyPatch, number: int, is_free: bool
    ) -> None:
        """A new node would come after it, and wait for it."""
        held, waits = (world.ask("a", queue=True) for _ in range(2))
        assert isinstance(await world.store.grant(held, STEP), Grant)
        ticket = await in_the_short_session(world, waits)
        node = ticket.node
        if is_free:
            await world.store.release("a", held.token, STEP)
        end_in_the_request(monkeypatch, ticket.session, number)
        assert isinstance(await world.store.grant(waits, STEP), Grant) == is_free
        [name] = [name for name in raw.get_children(f"{chroot}/default/a") if name.startswith(guid(waits.token))]
        assert int(name[33:]) == int(node.rpartition("/")[2][33:])


async def in_the_short_session(world: World, ask: Ask) -> ZooKeeperTicket:
    """The ticket of *ask* once it has waited long enough for its node to be in the short session."""
    assert isinstance(world.store, ZooKeeperStore)
    while True:  # a busy machine may take longer to begin the session
        busy = await world.store.grant(ask, STEP)
        assert isinstance(busy, Busy)
        await world.store.wait(ask, busy, 1.0)
        ticket = world.store._tickets.all[ask.token]
        if ticket.is_in_short_session:
            return ticket


def end_in_the_request(monkeypatch: pytest.MonkeyPatch, session: ZooKeeperSession, number: int) -> None:
    """Let the requests that *session* sends with the index *number* be answered as if it had ended, once."""
    ask, sent = session.ask, itertools.count()

    async def ended(until: float, *requests: Any) -> Any:
        if next(sent) == number:
            return [SessionEnded(session.source.shown, "the session has ended")] * len(requests)
        return await ask(until, *requests)

    monkeypatch.setattr(session, "ask", ended)


async def wait_once(world: World, ask: Ask, busy: Busy) -> None:
    """Wait, and ask again; the answer may be lost."""
    await world.store.wait(ask, busy, 1.0)
    with contextlib.suppress(StoreUnavailable):
        await world.store.grant(ask, 1.0)


def lose_the_answer_of_a_move(monkeypatch: pytest.MonkeyPatch, carried_out: bool) -> None:
    """The next requests that let a node end with another session are not answered."""
    ask = ZooKeeperSession.ask

    async def lost(self: ZooKeeperSession, until: float, *requests: Any) -> Any:
        if type(requests[0]) is not type(together()):
            return await ask(self, until, *requests)
        if carried_out:
            await ask(self, until, *requests)
        return [OutcomeUnknown(self.source.shown, "no answer in time")] * len(requests)

    monkeypatch.setattr(ZooKeeperSession, "ask", lost)


async def has_sessions(raw: KazooClient, path: str, count: int) -> bool:
    """Whether the nodes under *path* are in *count* different sessions."""
    stats = [raw.exists(f"{path}/{name}") for name in raw.get_children(path)]
    return len({stat.ephemeralOwner for stat in stats if stat}) == count


def owner_of(raw: KazooClient, path: str, token: str) -> int:
    """The session that the node of *token* ends with."""
    [name] = [name for name in raw.get_children(path) if name.startswith(guid(token))]
    return int(raw.get(f"{path}/{name}")[1].ephemeralOwner)


class TestCosts(ZooKeeperKind):
    async def test_any_number_of_leases_with_the_longest_names_is_renewed(self, world: World) -> None:
        """They are split into requests of a size that a server accepts."""
        claims = [await world.crashed(f"{number:04}" + "🔒" * 249, 30) for number in range(250)]
        assert await world.store.renew(claims, STEP) == [None] * len(claims)

    async def test_of_a_crowd_one_is_called_and_a_hand_over_costs_a_few_requests(
        self, world: World, zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(zookeeper_grant, "SETTLED", NEVER)  # a busy machine takes longer to serve them
        crowd = [world.ask("a", queue=True) for _ in range(32)]
        assert isinstance(await world.store.grant(crowd[0], STEP), Grant)
        waiters = []
        for ask in crowd[1:]:
            busy = await world.store.grant(ask, STEP)
            waiters.append(world.begin(functools.partial(wait_for, world, ask, busy)))
        before = zookeeper.number("zk_packets_received")
        await world.store.release("a", crowd[0].token, STEP)
        for ask, waiter in zip(crowd[1:], waiters, strict=True):
            await waiter.result()
            await world.store.release("a", ask.token, STEP)
        assert zookeeper.number("zk_packets_received") - before <= 5 * len(crowd)


async def wait_for(world: World, ask: Ask, answer: Grant | Busy | None = None) -> Grant:
    """Ask and wait until *ask* is granted, as `Lock.acquire` does."""
    while not isinstance(answer, Grant):
        if answer is not None:
            await world.store.wait(ask, answer, answer.retry_in)
        answer = await world.store.grant(ask, STEP)
    return answer


async def is_watched(world: World, client: Client, token: str) -> bool:
    """Whether the end of its node calls the store of *client*."""
    store = world.wire(client)._store
    assert isinstance(store, ZooKeeperStore)
    return store._tickets.all[token].watch_state is WatchState.SET


def refuse_from(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """From now on requests are refused, beginning with number *count*."""
    ask, asked = ZooKeeperSession.ask, itertools.count(1)

    async def refused(self: ZooKeeperSession, *rest: Any) -> Any:
        if next(asked) >= count:
            raise StoreUnavailable(self.source.shown, "cut")
        return await ask(self, *rest)

    monkeypatch.setattr(ZooKeeperSession, "ask", refused)


async def has_children(raw: KazooClient, path: str, count: int) -> bool:
    return len(raw.get_children(path)) == count


async def in_the_queue(world: World, name: str, count: int) -> bool:
    """Whether *count* clients hold *name* or wait for it."""
    state = await world.store.show(name, STEP)
    return len(state.holders) + len(state.waiting) == count


async def no_more_than(threads: int) -> bool:
    return threading.active_count() <= threads


async def as_before(zookeeper: ZooKeeperServer, sessions: set[int]) -> bool:
    return zookeeper.sessions() == sessions


def end_session(client: dibs.Client | object, zookeeper: ZooKeeperServer) -> None:
    """Close the session of *client* by its id and password, as an expiry does at the server."""
    [(_, session)] = client._store._store._sessions.all  # type: ignore[union-attr]
    twin = KazooClient(f"{HOST}:{zookeeper.port}", client_id=session._client.client_id)
    twin.start()
    twin.stop()
    twin.close()


# --- in blocking code only: the same in async code -------------------------------------------------------------


@pytest.fixture
def url(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.url}/tests/{next(CHROOTS)}"


def test_a_client_of_kazoo_says_where_the_ensemble_is_and_keeps_its_session(zookeeper: ZooKeeperServer) -> None:
    theirs = KazooClient(f"{HOST}:{zookeeper.port}/tests/{next(CHROOTS)}")
    theirs.start_async().wait(10)
    session = theirs.client_id
    with dibs.connect(theirs) as client, client.lock("a") as lease:
        assert len(theirs.get_children("/default/a")) == 1
        assert not theirs.exists("/default/a").ephemeralOwner
        lease.check()
    assert theirs.client_id == session
    assert theirs.connected
    theirs.stop()
    theirs.close()


def test_no_server_is_told_at_once_and_by_its_name() -> None:
    port = Port()
    with (
        dibs.connect(f"zookeeper://{HOST}:{port.number}") as client,
        pytest.raises(StoreUnavailable, match=rf"zookeeper://127\.0\.0\.1:{port.number}.*refused"),
    ):
        client.lock("a").acquire(timeout=30)
    port.give_back()


def test_servers_that_turn_connections_away_are_named_as_such() -> None:
    with ZooKeeperServer(["maxClientCnxns=1"]) as server, dibs.connect(server.url) as client:
        client.lock("a").acquire(timeout=0)
        with dibs.connect(server.url) as other, pytest.raises(StoreUnavailable, match="maxClientCnxns"):
            other.lock("a").acquire(timeout=2)


def test_a_dead_first_server_is_passed_over(zookeeper: ZooKeeperServer) -> None:
    port = Port()
    with dibs.connect(f"zookeeper://{HOST}:{port.number},{HOST}:{zookeeper.port}") as client:
        for name in range(4):
            client.lock(f"passed over {name}").acquire(timeout=10).release()
    port.give_back()


def test_a_lease_cannot_be_handed_over_and_stays_what_it_was(url: str) -> None:
    with dibs.connect(url) as client:
        lease = client.lock("a").acquire()
        with pytest.raises(NotSupported, match=r"take redis:// or postgresql://"):
            lease.detach()
        lease.renew()
        with dibs.connect(url) as other:
            for step in (other.resume, other.renew):
                with pytest.raises(NotSupported, match=r"no hand-over: a node belongs to one session"):
                    step(lease.to_str())
        lease.renew()


FORKED = """
import os, sys
import dibs

with dibs.connect(sys.argv[1]) as client:
    lease = client.lock("a", ttl=30).acquire()
    if not (child := os.fork()):
        try:
            lease.release()
        except dibs.Misuse:
            assert client.lock("a").try_acquire() is None
            with client.lock("b"):
                pass
            sys.exit(7)  # with all that happens at the end of an interpreter
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    lease.renew()
    print(lease.fence == client.show("a").fence)
"""


def test_a_forked_child_leaves_the_session_of_its_parent_alone_and_has_its_own(
    url: str, zookeeper: ZooKeeperServer
) -> None:
    sessions = zookeeper.sessions()
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    until(lambda: zookeeper.sessions() == sessions, "all sessions are closed, the child's too")


class TestLimits:
    """A server with TLS that gives sessions of 12 to 20 s."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, certificates: object) -> Iterator[ZooKeeperServer]:
        limits = ["minSessionTimeout=12000", "maxSessionTimeout=20000"]
        with ZooKeeperServer(limits, tls=certificates) as server:  # type: ignore[arg-type]
            yield server

    def test_a_ttl_that_is_shorter_than_the_server_can_give_is_raised_and_said_so(
        self, server: ZooKeeperServer
    ) -> None:
        with dibs.connect(server.url) as client:
            lease = client.lock("short", ttl=8).acquire()
            assert lease.ttl == pytest.approx(11)
            assert 8 < lease.expires_in() <= 11

    def test_a_ttl_that_is_longer_is_refused_and_leaves_nothing_behind(self, server: ZooKeeperServer) -> None:
        with dibs.connect(server.url) as client:
            for _ in range(2):
                with pytest.raises(NotSupported, match=r"ttl=60: .* a lease has 19 s.*maxSessionTimeout"):
                    client.lock("long", ttl=60).acquire()
            assert client.show("long").fence == 0
            client.lock("long", ttl=19).acquire().release()

    def test_tls_takes_only_a_certificate_that_is_trusted(self, server: ZooKeeperServer) -> None:
        untrusting = server.url.partition("?")[0]
        with dibs.connect(untrusting) as client, pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            client.lock("a").acquire(timeout=10)


def test_with_a_login_the_nodes_are_closed_to_all_others(zookeeper: ZooKeeperServer) -> None:
    path = f"{HOST}:{zookeeper.port}/tests/{next(CHROOTS)}"
    with dibs.connect(f"zookeeper://alice:s%3Acret@{path}") as alice, dibs.connect(f"zookeeper://{path}") as nobody:
        lease = alice.lock("a").acquire()
        assert "s%3Acret" not in repr(alice)
        with pytest.raises(StoreUnavailable, match="NoAuth"):
            nobody.lock("a").acquire(timeout=0)
        with pytest.raises(StoreUnavailable, match="NoAuth"):
            nobody.show("a")
        lease.renew()
        with dibs.connect(f"zookeeper://alice:s%3Acret@{path}") as same:
            assert same.lock("a").try_acquire() is None
            assert same.evict("a", fence=lease.fence)


def test_a_ttl_that_kazoo_cannot_keep_is_refused_before_anything_is_sent() -> None:
    with dibs.connect("zookeeper://nowhere.invalid") as client, pytest.raises(Misuse, match=r"less than 1 seconds"):
        client.lock("a", ttl=0.5)


def test_the_command_line_shows_breaks_and_guards(url: str) -> None:
    with dibs.connect(url) as client:
        lease = client.lock("a", note="nightly").acquire()
        assert f"fence {lease.fence}" in command("show", "a", url=url)
        assert "nightly" in command("ls", url=url)
        assert "7" in command("run", "b", "--", sys.executable, "-c", "print(7)", url=url)
        command("break", "a", "--fence", str(lease.fence), "--reason", "it hangs", url=url)
        assert client.show("a").holder is None
        with pytest.raises(dibs.LeaseLost):
            lease.renew()


def command(verb: str, *words: str, url: str) -> str:
    """What `dibs` prints; it has nothing to complain about."""
    options = [*words[:1], "--url", url, *words[1:]]
    done = subprocess.run(
        [sys.executable, "-m", "dibs", verb, *options], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("share", [None, SHARED])
def test_an_interrupt_anywhere_in_a_step_does_not_keep_the_release_out(
    zookeeper: ZooKeeperServer, share: Share | None
) -> None:
    url = f"{zookeeper.url}/tests/{next(CHROOTS)}"
    with steps(url) as client, steps(url) as others:
        client.release(client.take())
        for number in range(ENOUGH):
            ask = client.ask(f"x{number}")
            ask = ask if share is None else ask._replace(token=share.token(ask.token))
            try:
                with interrupt(number):
                    client.grant(ask, SOON)
            except KeyboardInterrupt:
                client.release(ask, AT_ONCE)
                assert isinstance(others.grant(others.ask(ask.name)), Grant)
            else:
                break
        assert 5 < number < ENOUGH - 1


def _is_of_the_store(path: str) -> bool:
    """Whether the file *path* is one of the ZooKeeper store, and not of its port."""
    return "/stores/zookeeper/" in path and "/port/" not in path


@contextmanager
def interrupt(number: int) -> Iterator[None]:
    """Ctrl-C in the first bytecode of the function number *number* that the store calls, from 0."""
    calls = itertools.count()

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _is_of_the_store(frame.f_code.co_filename) and next(calls) == number:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
