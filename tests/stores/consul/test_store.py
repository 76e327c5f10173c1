"""The Consul store on a real agent: the contract, and what a store of sessions and transactions has to get right."""

from __future__ import annotations

import asyncio
import base64
import itertools
import subprocess
import sys
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from cli.processes import Sandbox
from dibs.errors import LeaseLost, LossReason, Misuse, NotAcquired, OutcomeUnknown, StoreUnavailable
from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import open_store
from dibs.stores.consul.options import options_from
from dibs.stores.consul.port.agent import Agent
from dibs.stores.consul.renewal import TOGETHER
from dibs.stores.store import Ask, Busy, Grant, PartlyRenewed, Store
from dibs.testing.contract import StoreContract
from dibs.testing.proxy import FaultProxy
from servers.certificates import Certificates
from servers.consul import MASTER, ConsulServer
from servers.process import until
from servers.programs import program
from tempo import took

Proxied = Callable[[ConsulServer], FaultProxy]

NUMBERS = itertools.count(1)

LOCKS = b'"Verb":"lock"'
"""Stands in each transaction that takes something."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[ConsulServer]:
    """An agent that refuses whatever is not allowed."""
    rules = {"enabled": True, "default_policy": "deny", "tokens": {"master": MASTER, "agent": MASTER}}
    with ConsulServer(config={"acl": rules, "primary_datacenter": "dc1"}) as server:
        until(lambda: bool(server.ask("GET", "/v1/acl/tokens")), "the rules are in force")
        yield server


KEYS, SESSIONS = 'key_prefix "dibs-" { policy = "write" }', 'session_prefix "" { policy = "write" }'


def token_for(server: ConsulServer, *rules: str) -> str:
    """A token that may do what *rules* say."""
    name = f"rules-{next(NUMBERS)}"
    server.ask("PUT", "/v1/acl/policy", {"Name": name, "Rules": "\n".join(rules)})
    return str(server.ask("PUT", "/v1/acl/token", {"Policies": [{"Name": name}]})["SecretID"])


def as_owner(server: ConsulServer, token: str) -> str:
    """The URL of *server*, with *token*."""
    return server.url.replace("consul://", f"consul://:{token}@")


@pytest.fixture(scope="module")
def token(guarded: ConsulServer) -> str:
    """For a token with only the rights that the docs name."""
    return token_for(guarded, KEYS, SESSIONS)


class TestContract(StoreContract):
    """One agent, with a token that may do what the docs name and nothing else."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, guarded: ConsulServer, token: str) -> str:
        return as_owner(guarded.reset(), token)


class TestRights:
    """A refusal is told as one, with what to grant, and leaves nothing behind."""

    @pytest.mark.parametrize("rules", [(), (KEYS,), (SESSIONS,)], ids=["nothing", "keys", "sessions"])
    def test_what_a_token_may_not_do_is_told_and_leaves_nothing(
        self, guarded: ConsulServer, rules: tuple[str, ...]
    ) -> None:
        guarded.reset()
        hint = "key_prefix write on the locks, and session_prefix write"
        url = as_owner(guarded, token_for(guarded, *rules))
        with dibs.connect(url) as client, pytest.raises(StoreUnavailable, match=hint):
            client.lock("job").acquire(timeout=1)
        assert (guarded.kept(), guarded.sessions()) == ([], [])

    def test_a_holder_whose_token_may_no_longer_see_its_key_is_not_told_that_it_is_gone(
        self, guarded: ConsulServer
    ) -> None:
        guarded.reset()
        name = f"rules-{next(NUMBERS)}"
        policy = guarded.ask("PUT", "/v1/acl/policy", {"Name": name, "Rules": f"{KEYS}\n{SESSIONS}"})
        token = guarded.ask("PUT", "/v1/acl/token", {"Policies": [{"Name": name}]})["SecretID"]
        with dibs.connect(as_owner(guarded, token)) as client:
            lease = client.lock("job").acquire()
            guarded.ask("PUT", f"/v1/acl/policy/{policy['ID']}", {"ID": policy["ID"], "Name": name, "Rules": SESSIONS})
            until(lambda: not renews(lease), "the rules are in force")
            lease.check()
            guarded.ask("PUT", f"/v1/acl/policy/{policy['ID']}", policy)
            until(lambda: renews(lease), "the rules are in force")
            lease.release()


def renews(lease: dibs.Lease) -> bool:
    try:
        lease.renew()
    except StoreUnavailable:
        return False
    return True


class TestSessions:
    """One for all leases with the same ttl."""

    def test_a_client_has_one_session_for_each_ttl_and_none_when_it_is_closed(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            for number in range(5):
                client.lock(f"short {number}", ttl=20).acquire()
                client.lock(f"long {number}", ttl=40).acquire()
            assert sorted((found["TTL"], found["LockDelay"]) for found in consul.sessions()) == [
                ("22500ms", 10_000_000_000),
                ("45000ms", 20_000_000_000),
            ]
        assert consul.sessions() == []

    def test_threads_that_come_at_once_share_one(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            at_once(*[lambda number=number: client.lock(f"lock {number}").acquire() for number in range(8)])
            assert len(consul.sessions()) == 1

    def test_an_idle_client_whose_session_ran_out_makes_another(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            with client.lock("job", ttl=0.2) as first:
                pass
            until(lambda: not consul.sessions(), "the session has run out")
            with client.lock("job", ttl=0.2) as second:
                assert second.fence > first.fence

    def test_a_lease_that_was_dropped_ends_on_time_though_its_session_lives(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client, dibs.connect(consul.url) as other:
            kept = client.lock("kept", ttl=0.5).acquire()
            dropped = client.lock("dropped", ttl=0.5).acquire()
            del dropped
            began = time.monotonic()
            with took(2):
                other.lock("dropped").acquire(timeout=5)
            assert time.monotonic() - began > 0.4
            kept.check()

    def test_what_is_left_of_a_name_is_its_last_fence(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            lease = client.lock("job").acquire()
            lease.release()
        assert consul.kept() == [f"{consul.root}/default/job/.last"]
        assert consul.kv(consul.kept()[0])["ModifyIndex"] == lease.fence

    def test_a_lease_that_was_handed_over_leaves_no_session_behind(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as ours, dibs.connect(consul.url) as theirs:
            text = ours.lock("job").acquire().detach()
            ours.close()
            resumed = theirs.resume(text)
            assert len(consul.sessions()) == 1
            resumed.release()
        assert consul.sessions() == []

    def test_a_ttl_below_that_of_the_servers_is_refused(self, start_consul: Callable[..., ConsulServer]) -> None:
        """Before anything is sent, or when a URL says less than the servers have."""
        server = start_consul(config={"session_ttl_min": "10s"})
        with (
            dibs.connect(f"consul://127.0.0.1:{server.port}") as client,
            pytest.raises(Misuse, match="less than 10 seconds"),
        ):
            client.lock("job", ttl=5)
        with dibs.connect(server.url) as client, pytest.raises(Misuse, match="session_ttl_min"):
            client.lock("job", ttl=5).acquire()
        assert server.sessions() == []

    def test_a_fork_leaves_the_parents_sessions_alone(self, consul: ConsulServer) -> None:
        script = """
import dibs, os, sys
client = dibs.connect(sys.argv[1])
lease = client.lock("job", ttl=5).acquire()
if os.fork() == 0:
    assert client.lock("job").try_acquire() is None
    client.lock("other").acquire().release()
    sys.exit()
assert os.wait()[1] == 0
lease.renew()
lease.release()
client.close()
"""
        subprocess.run([sys.executable, "-c", script, consul.url], check=True, timeout=30)
        assert consul.sessions() == []


class TestLoss:
    """What others do to sessions and keys."""

    def test_a_session_that_was_destroyed_is_a_loss_for_all_it_carried(self, consul: ConsulServer) -> None:
        """At the next renewal; and the lock-delay keeps others out until then."""
        with dibs.connect(consul.url) as client, dibs.connect(consul.url) as other:
            leases = [client.lock(f"job {number}", ttl=0.9).acquire() for number in range(3)]
            consul.ask("PUT", f"/v1/session/destroy/{consul.sessions()[0]['ID']}")
            began = time.monotonic()
            with took(3):
                taken = other.lock("job 0", ttl=0.9).acquire(timeout=5)
                assert [lease.lost_reason for lease in leases] == [LossReason.SESSION_ENDED] * 3
            assert time.monotonic() - began > 0.4
            assert taken.fence > leases[0].fence

    def test_a_key_that_was_deleted_is_a_loss_within_one_renewal(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            lost, kept = (client.lock(name, ttl=0.6).acquire() for name in ("lost", "kept"))
            consul.ask("DELETE", f"/v1/kv/{consul.root}/default/lost/.lock")
            assert lost.lost.wait(0.5)
            assert lost.lost_reason is LossReason.TAKEN
            kept.renew()

    def test_of_two_broken_one_after_the_other_both_are_told_so_by_one_request(
        self, consul: ConsulServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = counted(monkeypatch)
        with dibs.connect(consul.url) as first, dibs.connect(consul.url) as second, dibs.connect(consul.url) as other:
            leases = []
            for client in (first, second):
                leases.append(client.lock("job", ttl=60).acquire(timeout=0))
                assert other.evict("job", fence=leases[-1].fence)
            for lease in leases:
                asked.clear()
                with pytest.raises(LeaseLost):
                    lease.renew()
                assert lease.lost_reason is LossReason.EVICTED
                assert asked.total() <= 2, "one for the session, one for the keys"

    def test_a_release_that_finds_nothing_is_a_loss_although_nobody_says_why(
        self, consul: ConsulServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refused(self: Agent, *_: object) -> None:
            raise StoreUnavailable(str(self), "cut")

        with dibs.connect(consul.url) as client:
            lease = client.lock("job", ttl=60).acquire()
            consul.ask("DELETE", f"/v1/kv/{consul.root}/default/job/.lock")
            monkeypatch.setattr(Agent, "read", refused)
            with pytest.raises(LeaseLost):
                lease.release()
            assert lease.lost_reason is LossReason.TAKEN

    def test_a_loss_is_told_although_others_could_not_be_asked_for(
        self, consul: ConsulServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read, asked = Agent.read, []

        async def refused_from_the_second_on(self: Agent, *rest: Any) -> Any:
            asked.append(rest)
            if len(asked) > 1:
                raise StoreUnavailable(str(self), "cut")
            return await read(self, *rest)

        with dibs.connect(consul.url) as client:
            leases = [client.lock(f"job-{number}", ttl=60).acquire() for number in range(TOGETHER + 1)]
            consul.ask("DELETE", f"/v1/kv/{consul.root}/default/job-0/.lock")
            monkeypatch.setattr(Agent, "read", refused_from_the_second_on)
            with pytest.raises(PartlyRenewed) as partly:
                run(client._core._store.renew([lease._core._claim for lease in leases], 5))
            assert partly.value.answers[:2] == [LossReason.TAKEN, None]
            assert leases[0].lost_reason is LossReason.TAKEN
            monkeypatch.undo()

    def test_a_holder_that_is_cut_off_is_told_before_another_is_granted(
        self, consul: ConsulServer, fault_proxy: Proxied
    ) -> None:
        proxy = fault_proxy(consul)
        with dibs.connect(consul.url_at(proxy.address, lock_delay="0")) as client, dibs.connect(consul.url) as other:
            lease = client.lock("job", ttl=0.5).acquire()
            with proxy.black_hole("requests"):
                second = other.lock("job", ttl=0.5).acquire(timeout=10)
                assert lease.lost_reason is LossReason.EXPIRED
            second.renew()
            with pytest.raises(LeaseLost):
                lease.release()
            second.check()

    def test_a_renewal_that_failed_once_is_no_loss(self, consul: ConsulServer, fault_proxy: Proxied) -> None:
        proxy = fault_proxy(consul)
        with dibs.connect(consul.url_at(proxy.address)) as client:
            lease = client.lock("job", ttl=0.9).acquire()
            fault = proxy.drop("requests", b"/v1/session/renew", times=2)
            fault.wait(2)
            until(lambda: lease.expires_in() > 0.7, "it is renewed all the same")
            assert not lease.lost


class TestLockDelay:
    """Consul keeps a lock closed for a while when the session of its holder ended."""

    @pytest.fixture
    def closed(self, consul: ConsulServer) -> str:
        """A lock whose holder's session has just ended, with a lock-delay of 1.5 s."""
        with dibs.connect(consul.url_at(lock_delay="1.5")) as client:
            client.lock("job").acquire()
            consul.ask("PUT", f"/v1/session/destroy/{consul.sessions()[0]['ID']}")
        return "job"

    def test_it_is_told_apart_from_busy(self, consul: ConsulServer, closed: str) -> None:
        with dibs.connect(consul.url) as client:
            with pytest.raises(NotAcquired, match="lock-delay") as refused:
                client.lock(closed).acquire(timeout=0)
            assert refused.value.holder is None
            state = client.show(closed)
            assert state.holder is None
            assert "lock-delay" in state.remarks[0]

    def test_a_waiter_gets_the_lock_when_it_is_over(self, consul: ConsulServer, closed: str) -> None:
        began = time.monotonic()
        with dibs.connect(consul.url) as client, client.lock(closed, timeout=10):
            assert time.monotonic() - began < 5
            assert client.show(closed).remarks == ()

    def test_a_waiter_that_saw_the_holder_knows_how_long_it_takes(self, consul: ConsulServer) -> None:
        url, ask = consul.url_at(lock_delay="3"), Ask("job", "b" * 32, 30, "", True)
        with closing_store(url) as holder, closing_store(url) as waiter:
            assert isinstance(run(holder.grant(ask._replace(token="a" * 32), 5)), Grant)
            assert isinstance(run(waiter.grant(ask, 5)), Busy)
            session = consul.kv(f"{consul.root}/default/job/.lock")["Session"]
            consul.ask("PUT", f"/v1/session/destroy/{session}")
            answer = run(waiter.grant(ask, 5))
            assert isinstance(answer, Busy)
            assert 1 < answer.retry_in <= 3
            assert "about" in answer.why

    @pytest.mark.parametrize("how", ["release", "break"])
    def test_what_was_ended_on_purpose_has_none(self, consul: ConsulServer, how: str) -> None:
        with dibs.connect(consul.url_at(lock_delay="60")) as client, dibs.connect(consul.url) as other:
            lease = client.lock("job").acquire()
            if how == "release":
                lease.release()
            else:
                assert client.evict("job", fence=lease.fence)
            other.lock("job").acquire(timeout=0)


class TestUnknown:
    """Whatever was sent may have happened, and may still happen."""

    def test_a_lost_answer_is_found_out(self, consul: ConsulServer, fault_proxy: Proxied) -> None:
        proxy = fault_proxy(consul)
        with dibs.connect(consul.url_at(proxy.address)) as client:
            client.lock("other").acquire()
            fault = proxy.drop_reply(to=LOCKS)
            lease = client.lock("job").acquire(timeout=5)
            assert fault.count == 1
            lease.renew()
            lease.release()
        assert [key for key in consul.kept() if key.endswith(".lock")] == []

    def test_a_grant_that_arrives_after_it_was_given_up_is_refused(
        self, consul: ConsulServer, fault_proxy: Proxied
    ) -> None:
        """The session lives on for the other leases of the client, so nothing else would ever free the lock."""
        proxy = fault_proxy(consul)
        both = consul.url.replace("consul://", f"consul://127.0.0.1:{proxy.port},")  # the proxy is asked first
        with closing_store(both) as store, closing_store(consul.url) as other:
            assert isinstance(run(store.grant(Ask("other", "a" * 32, 30, "", False), 5)), Grant)
            ask = Ask("late", "b" * 32, 30, "", False)
            with proxy.black_hole("requests"):
                with pytest.raises(OutcomeUnknown):
                    run(store.grant(ask, 0.2))
                assert run(store.release(ask.name, ask.token, 5)) is not None
            until(lambda: proxy.connections == 0, "what was held back has arrived")
            assert isinstance(run(other.grant(ask._replace(token="c" * 32), 5)), Grant)

    def test_a_grant_that_arrives_after_its_asker_was_told_busy_is_refused(
        self, consul: ConsulServer, fault_proxy: Proxied
    ) -> None:
        """A try that is answered leaves nothing to give back, so nobody would."""
        proxy = fault_proxy(consul)
        both = consul.url.replace("consul://", f"consul://127.0.0.1:{proxy.port},")
        with closing_store(both) as store, closing_store(consul.url) as other:
            assert isinstance(run(store.grant(Ask("other", "a" * 32, 30, "", False), 5)), Grant)
            ask = Ask("late", "b" * 32, 30, "", False)
            with proxy.black_hole("requests"):
                with pytest.raises(OutcomeUnknown):
                    run(store.grant(ask, 0.2))
                assert isinstance(run(other.grant(ask._replace(token="c" * 32), 5)), Grant)
                assert isinstance(run(store.grant(ask, 5)), Busy)
                assert run(other.release(ask.name, "c" * 32, 5)) is None
            until(lambda: proxy.connections == 0, "what was held back has arrived")
            assert isinstance(run(other.grant(ask._replace(token="d" * 32), 5)), Grant)

    def test_cancels_leave_no_keys_and_no_sessions(self, consul: ConsulServer) -> None:
        """At any moment: in the first acquire of a client, in a wait, in a release, in a renewal."""

        async def main() -> None:
            async with dibs.aio.connect(consul.url) as other:
                held = await other.lock("held").acquire()
                for turns in (*range(16), 0.0005, 0.001, 0.002, 0.004):
                    async with dibs.aio.connect(consul.url) as client:
                        await cancelled(turns, client.lock("job").acquire())
                        await cancelled(turns, client.lock("held").acquire())
                        lease = await client.lock("job").acquire(timeout=2)
                        await cancelled(turns, lease.renew())
                        await cancelled(turns, lease.release())
                await held.release()

        asyncio.run(main())
        assert consul.sessions() == []
        assert sorted(key.rpartition("/")[2] for key in consul.kept()) == [".last", ".last"]


class TestWaiting:
    """A queue of tickets, each watching the one ahead."""

    CROWD = 32

    def test_a_crowd_costs_the_same_few_requests_for_each_hand_over(
        self, consul: ConsulServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clients = [dibs.connect(consul.url) for _ in range(self.CROWD)]
        holder, served = dibs.connect(consul.url), list[int]()
        lease = holder.lock("job").acquire()

        def wait(number: int) -> None:
            with clients[number].lock("job"):
                served.append(number)

        threads = []
        for number in range(self.CROWD):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            until(lambda: len(holder.show("job").waiting) == len(threads), "it waits")
        asked = counted(monkeypatch)
        lease.release()
        for thread in threads:
            thread.join(30)
        assert served == list(range(self.CROWD))
        assert asked["PUT"] + asked["GET"] <= 8 * self.CROWD, asked
        for client in (*clients, holder):
            client.close()

    def test_an_index_that_goes_back_does_not_leave_a_waiter_behind(
        self, start_consul: Callable[..., ConsulServer]
    ) -> None:
        """An operator puts a snapshot back from before the lock was taken."""
        consul = start_consul()
        snapshot = consul.ask("GET", "/v1/snapshot")
        with dibs.connect(consul.url) as client, dibs.connect(consul.url) as other:
            lease, got = client.lock("job", ttl=1).acquire(), list[Any]()
            waiter = threading.Thread(target=lambda: got.append(other.lock("job", ttl=1).acquire(timeout=15)))
            waiter.start()
            until(lambda: len(client.show("job").waiting) == 1, "it waits")
            consul.ask("PUT", "/v1/snapshot", snapshot)
            waiter.join(15)
            assert got[0].fence > lease.fence
            assert lease.lost.wait(2)

    def test_the_ticket_of_a_client_that_died_does_not_stay(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            lease = client.lock("job", ttl=30).acquire()
            script = "import dibs, sys; dibs.connect(sys.argv[1]).lock('job', ttl=0.3).acquire()"
            waiting = subprocess.Popen([sys.executable, "-c", script, consul.url])
            until(lambda: len(client.show("job").waiting) == 1, "it waits")
            waiting.kill()
            waiting.wait()
            until(lambda: len(client.show("job").waiting) == 0, "its session has ended")
            lease.release()
            client.lock("job").acquire(timeout=1).release()


class TestLine:
    """An ask without a ticket is let in only if no client waits, not even one that came a moment ago."""

    def test_a_waiter_that_takes_its_turn_lets_no_newcomer_past_a_waiter_that_came_meanwhile(
        self, consul: ConsulServer
    ) -> None:
        with closing_store(consul.url) as store, closing_store(consul.url) as other:
            holds, first, second, newcomer = (asks("job", token, queue=token in "bc") for token in "abcd")
            assert isinstance(run(store.grant(holds, 5)), Grant)
            busy = run(store.grant(first, 5))
            assert isinstance(busy, Busy)
            assert isinstance(run(other.grant(second, 5)), Busy)
            run(store.release("job", "a", 5))
            run(store.wait(first, busy, 5))
            assert isinstance(run(store.grant(first, 5)), Grant)
            assert f"{consul.root}/default/job/.waits" in consul.kept()
            run(store.release("job", "b", 5))
            assert isinstance(run(store.grant(newcomer, 5)), Busy)
            assert isinstance(run(other.grant(second, 5)), Grant)
            run(other.release("job", "c", 5))

    def test_a_waiter_that_leaves_lets_no_newcomer_past_a_waiter_that_came_meanwhile(
        self, consul: ConsulServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        txn, came = Agent.txn, list[bool]()

        async def after_another_came(self: Agent, ops: Any, *rest: Any, **more: Any) -> Any:
            if not came and any(op["KV"]["Verb"] == "delete" and op["KV"]["Key"].endswith(".waits") for op in ops):
                came.append(True)
                assert isinstance(await other.grant(second, 5), Busy)
            return await txn(self, ops, *rest, **more)

        with closing_store(consul.url) as store, closing_store(consul.url) as other:
            holds, first, second, newcomer = (asks("job", token, queue=token in "bc") for token in "abcd")
            assert isinstance(run(store.grant(holds, 5)), Grant)
            assert isinstance(run(store.grant(first, 5)), Busy)
            monkeypatch.setattr(Agent, "txn", after_another_came)
            run(store.release("job", "b", 5))
            assert came
            run(store.release("job", "a", 5))
            assert isinstance(run(store.grant(newcomer, 5)), Busy)
            assert isinstance(run(other.grant(second, 5)), Grant)
            run(other.release("job", "c", 5))


def asks(name: str, token: str, *, queue: bool) -> Ask:
    return Ask(name, token, 30, "", queue)


class TestOthers:
    """Tokens, TLS, and Consul's own command."""

    def test_a_token_is_needed_and_never_shown(
        self, start_consul: Callable[..., ConsulServer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rules = {"enabled": True, "default_policy": "deny", "tokens": {"master": MASTER, "agent": MASTER}}
        server = start_consul(config={"acl": rules, "primary_datacenter": "dc1"})
        until(lambda: bool(server.ask("GET", "/v1/acl/tokens")), "the rules are in force")
        address = f"127.0.0.1:{server.port}"
        with dibs.connect(f"consul://:11111111-dead@{address}") as client:
            with pytest.raises(StoreUnavailable, match="session_prefix write") as refused:
                client.lock("job").acquire()
            assert "11111111-dead" not in str(refused.value) + repr(client)
        with dibs.connect(f"consul://:{MASTER}@{address}") as client, client.lock("job"):
            assert MASTER not in repr(client)
        monkeypatch.setenv("CONSUL_HTTP_TOKEN", MASTER)
        with dibs.connect(f"consul://{address}") as client, client.lock("job"):
            pass

    def test_tls(self, start_consul: Callable[..., ConsulServer], certificates: Certificates) -> None:
        server = start_consul(tls=certificates)
        with dibs.connect(server.url) as client, client.lock("job") as lease:
            assert client.show("job").fence == lease.fence

    def test_consul_lock_and_we_keep_each_other_out(self, consul: ConsulServer, tmp_path: Path) -> None:
        found = program("consul")
        command = [found.path, "lock", f"-http-addr=127.0.0.1:{consul.port}", "-timeout=0.2s", "-try=0.2s"]
        prefix = f"{consul.root}/default/nightly"
        with dibs.connect(consul.url) as client:
            with client.lock("nightly"):
                kept_out = subprocess.run([*command, prefix, "true"], capture_output=True, timeout=30, check=False)
                assert kept_out.returncode != 0
            inside, go_on = tmp_path / "inside", tmp_path / "go on"
            script = f"touch '{inside}'; until [ -e '{go_on}' ]; do sleep 0.02; done"
            theirs = subprocess.Popen([*command[:-2], prefix, script], stderr=subprocess.DEVNULL)
            until(inside.exists, "consul lock has it")
            with pytest.raises(NotAcquired, match="another program"):
                client.lock("nightly").acquire(timeout=0)
            threading.Timer(0.2, go_on.touch).start()
            with client.lock("nightly", timeout=10) as lease:
                assert lease.fence > 0
            assert theirs.wait(20) == 0
        assert [key for key in consul.kept() if key.endswith(".lock")] == []

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            ("consul://host?lock_delay=61", "from 0 to 60"),
            ("consul://host?lock_delay=x", "from 0 to 60"),
            ("consul://host?min_ttl=0", "min_ttl=0"),
            ("consul://host?nosuch=1", "an option is not known"),
            ("consul://user@host", "after a colon"),
            ("consul://host/a//b", "no empty part"),
            ("consul:", "//"),
        ],
    )
    def test_a_url_that_cannot_be_right_is_refused(self, url: str, problem: str) -> None:
        with pytest.raises(Misuse, match=problem):
            dibs.connect(url)

    def test_the_lock_delay_is_half_of_the_ttl_unless_the_url_says_otherwise(self) -> None:
        assert [options_from({}).delay_of(ttl) for ttl in (10, 30, 600)] == [5, 15, 60]
        assert options_from({"lock_delay": "0"}).delay_of(30) == 0


class TestCommand:
    """`dibs` itself."""

    def test_its_verbs_work_with_consul(self, consul: ConsulServer, tmp_path: Path) -> None:
        box = Sandbox(tmp_path)
        box.env["DIBS_URL"] = consul.url
        token = box.dibs("acquire", "job", "--note", "mine").stdout
        assert [(found["name"], found["note"]) for found in box.json("ls")] == [("job", "mine")]
        assert box.dibs("run", "job", "--no-wait", "--", "true").returncode == 75
        assert box.dibs("renew", token).returncode == 0
        assert box.dibs("break", "job", "--fence", box.fence("job"), "--reason", "a test").returncode == 0
        assert box.json("show", "job")["evicted"]["reason"] == "a test"
        assert box.dibs("check", token).returncode == 76
        assert box.dibs("run", "job", "--", "echo", "done").stdout == "done\n"
        assert consul.sessions() == []


class TestCompare:
    """The condition of a lease, in a transaction of one's own."""

    def test_it_holds_as_long_as_the_lease(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as client:
            first = client.lock("job").acquire()
            condition = first.compare()
            assert wrote(consul, condition)
            first.release()
            assert not wrote(consul, condition)
            with client.lock("job") as second:
                assert not wrote(consul, condition)
                assert wrote(consul, second.compare())
            with pytest.raises(Misuse):
                first.compare()

    def test_it_is_right_after_a_hand_over(self, consul: ConsulServer) -> None:
        with dibs.connect(consul.url) as ours, dibs.connect(consul.url) as theirs:
            lease = ours.lock("job").acquire()
            before = lease.compare()
            resumed = theirs.resume(lease.detach())
            assert not wrote(consul, before)
            assert wrote(consul, resumed.compare())
            resumed.renew()
            assert wrote(consul, resumed.compare())


@contextmanager
def closing_store(url: str) -> Iterator[Store]:
    """A store without a client before it, for single steps."""
    store = open_store(url, "default", ThreadRuntime())
    try:
        yield store
    finally:
        run(store.close())


def wrote(consul: ConsulServer, condition: Any) -> bool:
    """Whether a write under *condition* was done."""
    write = {"KV": {"Verb": "set", "Key": "data", "Value": base64.b64encode(b"x").decode()}}
    try:
        consul.ask("PUT", "/v1/txn", [condition, write])
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise
        return False
    return True


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests that are sent from now on, by their method."""
    asked, ask = Counter[str](), Agent._ask

    async def count(self: Agent, method: str, *args: Any, **options: Any) -> Any:
        asked[method] += 1
        return await ask(self, method, *args, **options)

    monkeypatch.setattr(Agent, "_ask", count)
    return asked


def at_once(*works: Callable[[], object]) -> None:
    """Do all in threads of their own."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)


async def cancelled(turns: float, step: Any) -> None:
    """Begin *step*, and cancel it after that many turns of the loop, or seconds if it is no whole number."""
    task = asyncio.ensure_future(step)
    if isinstance(turns, int):
        for _ in range(turns):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(turns)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is None and task.result() is not None:
        await task.result().release()
