"""A Redlock of real servers of which some are dead, hung, slow, cut off, empty, or not what they seem."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

import pytest
import redis

import dibs
from dibs.core.client import Client
from dibs.errors import LeaseLost, LossReason, Misuse, NotAcquired, StoreUnavailable
from dibs.runtime.run import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.redlock import scripts
from dibs.stores.redlock.reseed import reseed
from dibs.stores.redlock.rights import redlock as rights
from dibs.stores.redlock.store import open_url
from dibs.stores.store import Ask, Busy, Grant
from dibs.testing.proxy import FaultProxy
from servers.clock import Clock
from servers.process import until
from servers.redis import RedisServer
from tempo import took

KEY, NODE = "dibs:{default:x}", "dibs:redlock:node"

FORGETTING: dict[str, Callable[[RedisServer], object]] = {
    "restarted": lambda server: server.restart(keep_data=False),
    "flushed": lambda server: server.command("FLUSHALL"),
    "swapped": lambda server: server.command("SWAPDB", 0, 1),
}
"""How a node loses its memory; of the last two nobody is told, for connections stay."""


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RedisServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(5)]


@pytest.fixture
def five(servers: list[RedisServer]) -> list[RedisServer]:
    for server in servers:
        server.reset()
    return servers


@pytest.fixture
def three(five: list[RedisServer]) -> list[RedisServer]:
    return five[:3]


def url(servers: list[RedisServer], options: str = "") -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in servers) + "/0" + options


def connect(servers: list[RedisServer], options: str = "") -> dibs.Client:
    return dibs.connect(url(servers, options))


def holders(servers: list[RedisServer]) -> list[bool]:
    """Which nodes have a holder of the lock."""
    return [server.command("EXISTS", KEY) == 1 for server in servers]


def met(servers: list[RedisServer], options: str = "") -> dibs.Client:
    """A client whose nodes know that they belong together."""
    client = connect(servers, options)
    with client.lock("x"):
        pass
    until(lambda: not any(holders(servers)), "all have heard of the release")
    return client


def problem_of(client: dibs.Client, name: str) -> StoreUnavailable | None:
    """Why the store cannot say whether *name* is free."""
    try:
        with client.lock(name, timeout=0.05, ttl=2):
            return None
    except NotAcquired:
        return None
    except StoreUnavailable as problem:
        return problem


def is_granted(client: dibs.Client) -> bool:
    try:
        with client.lock("x", timeout=0):
            return True
    except StoreUnavailable:
        return False


# --- nodes out of reach ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 4, 5])
def test_a_lock_is_granted_exactly_when_a_quorum_is_free(five: list[RedisServer], count: int) -> None:
    nodes = five[:count]
    with met(nodes) as client:
        for size in range(count + 1):
            for taken in combinations(nodes, size):
                for server in taken:
                    server.command("SET", KEY, "another program's", "PX", 60_000)
                lease = client.lock("x").try_acquire()
                assert (lease is not None) == (2 * (count - size) > count)
                if lease is not None:
                    lease.release()
                until(lambda size=size: sum(holders(nodes)) == size, "what was not won was given back")  # type: ignore[misc]
                for server in taken:
                    server.command("DEL", KEY)


@pytest.mark.parametrize("harm", [RedisServer.kill9, RedisServer.stop], ids=["dead", "hung"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_minority_that_is_down_does_not_matter(
    five: list[RedisServer], harm: Callable[[RedisServer], None], count: int
) -> None:
    with met(five) as client:
        for server in five[:count]:
            harm(server)
        fences = []
        for _ in range(20):
            with took(1.0), client.lock("x") as lease:
                fences.append(lease.fence)
                lease.renew()
        assert fences == sorted(set(fences))


@pytest.mark.parametrize("harm", [RedisServer.kill9, RedisServer.stop], ids=["dead", "hung"])
def test_a_majority_that_is_down_is_told_with_the_cause_of_each(
    five: list[RedisServer], harm: Callable[[RedisServer], None]
) -> None:
    with met(five) as client:
        for server in five[:3]:
            harm(server)
        with took(2), pytest.raises(StoreUnavailable) as error:
            client.lock("x", ttl=3).acquire(timeout=1)
        assert error.value.causes.keys() == {f"127.0.0.1:{server.port}" for server in five[:3]}
        for server in five[:3]:
            server.cont()
            if not server.runs:
                server.start()
        until(lambda: not any(holders(five)), "what was asked for meanwhile was given back")


def test_a_node_that_refuses_the_password_is_told_apart(
    three: list[RedisServer], start_redis: Callable[..., RedisServer]
) -> None:
    locked = [start_redis(password="secret") for _ in range(2)]
    with connect([three[0], *locked]) as client, pytest.raises(StoreUnavailable) as error:
        client.lock("x").try_acquire()
    assert [("password" in str(cause)) for cause in error.value.causes.values()] == [True, True]


def test_a_key_of_another_kind_on_a_node_is_told_apart(three: list[RedisServer]) -> None:
    with met(three) as client:
        three[0].command("LPUSH", KEY, "list")
        with client.lock("x"):
            pass  # a majority is left
        three[1].command("LPUSH", KEY, "list")
        with pytest.raises(StoreUnavailable, match="WRONGTYPE") as error:
            client.lock("x").try_acquire()
        assert all(f"{KEY!r} (string)" in str(cause) for cause in error.value.causes.values())


def test_a_key_that_never_ends_is_listed_with_how_to_remove_it(three: list[RedisServer]) -> None:
    with met(three) as client, client.lock("y"):
        for server in three[:2]:
            server.command("SET", KEY, "theirs")
        with pytest.raises(StoreUnavailable, match="delete the key"):
            client.lock("x").try_acquire()
        endless = {holder.name: holder for holder in client.holders()}["x"]
        assert endless.expires_in is None
        assert f"nothing ends it; if nobody holds it, delete the key {KEY!r}" in endless.note


def test_a_command_that_a_user_may_not_do_is_told_and_leaves_no_key_without_an_end(three: list[RedisServer]) -> None:
    with met(three, "?node_timeout=0.5") as ours:
        for command in ("hset", "pexpire", "set", "zadd", "zrem", "zscore"):  # what a refused ask comes by in a script
            for server in three:
                server.command("ACL", "SETUSER", "locks", *f"reset on >pw {rights()} -{command}".split())
            with dibs.connect(url(three).replace("//", "//locks:pw@")) as theirs, ours.lock("x", ttl=30):
                for name in ("x", "y"):
                    until(lambda name=name, theirs=theirs: is_told(problem_of(theirs, name)), command)  # type: ignore[misc]
            keys = [key for server in three for key in server.command("KEYS", "*") if server.command("PTTL", key) == -1]
            assert [key for key in keys if not key.endswith((":fence", ":node"))] == [], command


def is_told(problem: StoreUnavailable | None) -> bool:
    """Whether it is none, or what the user may not do; a busy machine may have had no time to say it."""
    return problem is None or str(problem).count("may not do all that dibs needs") >= 2


def test_a_release_calls_the_first_two_living_waiters_and_drops_the_dead_before_them(three: list[RedisServer]) -> None:
    line, tickets = f"{KEY}:line", f"{KEY}:tickets"
    with met(three) as client, redis.Redis(port=three[0].port) as raw, raw.pubsub() as heard:
        lease = client.lock("x").acquire()
        until(lambda: all(holders(three)), "all nodes have the lock")
        heard.subscribe("void", "first", "second", "third")
        assert all(heard.get_message(timeout=10) for _ in range(4)), "subscribed"
        later = (int(raw.time()[0]) + 60) * 1_000_000
        for place, (token, ends) in enumerate(
            {"void": 1, "gone": later, "first": later, "hung_up": later, "second": later, "third": later}.items()
        ):
            raw.zadd(line, {token: place})
            raw.hset(tickets, token, f"{ends} {token} host:1:user:note")
        lease.release()
        said = [heard.get_message(timeout=10) for _ in range(2)]
        assert [message["data"] for message in said if message] == [b"now first", b"soon second"]
        assert raw.zrange(line, 0, -1) == [b"first", b"second", b"third"]


def test_busy_is_not_unavailable(five: list[RedisServer]) -> None:
    with met(five) as ours, connect(five) as theirs, theirs.lock("x", note="theirs"):
        five[4].kill9()
        with pytest.raises(NotAcquired) as refused:
            ours.lock("x").acquire(timeout=0)
        assert refused.value.holder is not None
        assert refused.value.holder.note == "theirs"


# --- what a lease goes through -----------------------------------------------------------------------------------


def test_a_renewal_that_reaches_a_minority_only_ends_the_lease_at_its_deadline(five: list[RedisServer]) -> None:
    with met(five) as client:
        lease = client.lock("x", ttl=0.6).acquire()
        for server in five[:3]:
            server.stop()
        assert lease.lost.wait(2)
        assert lease.lost_reason is LossReason.EXPIRED


def test_a_release_that_reaches_a_majority_frees_the_lock(five: list[RedisServer]) -> None:
    with met(five) as client:
        lease = client.lock("x").acquire()
        five[0].stop()
        five[1].kill9()
        lease.release()
        assert client.lock("x").try_acquire() is not None


def test_a_lease_whose_keys_were_removed_from_a_majority_is_lost(three: list[RedisServer]) -> None:
    with met(three) as client:
        lease = client.lock("x").acquire()
        until(lambda: all(holders(three)), "the last of them has it too")
        for server in three[:2]:
            server.command("DEL", KEY)
        with pytest.raises(LeaseLost):
            lease.renew()
        assert lease.lost_reason is LossReason.TAKEN


def test_of_two_that_were_broken_one_after_the_other_each_is_told_so(three: list[RedisServer]) -> None:
    with met(three) as first, connect(three) as second, connect(three) as admin:
        leases = []
        for client in (first, second):
            leases.append(client.lock("x", ttl=30, on_lost="flag").acquire(timeout=5))
            until(lambda: all(holders(three)), "all nodes have the lock")
            assert admin.evict("x", fence=leases[-1].fence)
        for lease in leases:
            with pytest.raises(LeaseLost):
                lease.renew()
            assert lease.lost_reason is LossReason.EVICTED


def test_nodes_that_disagree_on_the_fence_are_brought_to_one(three: list[RedisServer]) -> None:
    """One node has given out fences from the future; the grant has one that is above them, everywhere."""
    with met(three) as client:
        future = 8_000_000_000_000_000
        three[0].command("SET", f"{KEY}:fence", future)
        three[1].stop()  # else the other two may be a majority without it
        with client.lock("x") as lease:
            assert lease.fence == future + 1
            assert [three[node].command("GET", f"{KEY}:fence") for node in (0, 2)] == [str(future + 1)] * 2
        three[1].cont()
        with client.lock("x") as lease:
            assert lease.fence > future + 1


@pytest.mark.parametrize("when", ["held", "after"])
def test_a_node_that_restarted_empty_does_not_vote(three: list[RedisServer], when: str) -> None:
    with met(three) as client:
        lease = client.lock("x").acquire()
        if when == "after":
            lease.release()
        three[0].restart(keep_data=False)
        with dibs.connect(url(three)) as other:
            assert (other.lock("x").try_acquire() is None) == (when == "held")
        if when == "held":
            lease.renew()
            lease.release()
        assert three[0].command("EXISTS", f"{KEY}:fence") == 0, "it was asked for nothing"
        state = client.show("x")
        assert any("memory" in remark for remark in state.remarks)


def test_a_node_that_was_restarted_with_its_data_has_been_away_too(start_redis: Callable[..., RedisServer]) -> None:
    """Its last writes may be missing; unless the nodes are said to be durable."""
    nodes = [start_redis(persistence="aof") for _ in range(3)]
    for options, votes in (("", False), ("?durable=yes", True)):
        with met(nodes, options) as client:
            nodes[0].restart(keep_data=True)

            def voted(client: dibs.Client = client) -> bool:
                with client.lock("x"):
                    return bool(nodes[0].command("EXISTS", KEY))

            if votes:
                until(voted, "it votes")  # perhaps not at the first grant: two nodes may have done by then
            else:
                assert not any(voted() for _ in range(5))
        if not votes:
            reseed(url(nodes), 1)


def test_a_majority_that_forgot_is_reseeded_by_anybody_and_clients_that_run_go_on(three: list[RedisServer]) -> None:
    with met(three) as client:
        fence = client.show("x").fence
        for server in three[:2]:
            server.restart(keep_data=False)
        with pytest.raises(StoreUnavailable, match="memory"):
            client.lock("x").try_acquire()
        mark = fence + 10_000_000_000
        reseed(url(three), mark)
        until(lambda: is_granted(client), "it goes on")
        with client.lock("x") as lease:
            assert lease.fence > mark


def test_the_first_fence_after_a_newcomer_reseeded_is_of_the_nodes_clocks(three: list[RedisServer]) -> None:
    with connect(three) as client:
        reseed(url(three), 5)
        shown_s, _ = three[0].command("TIME")
        with client.lock("x") as lease:
            assert lease.fence >= int(shown_s) * 1_000_000


@pytest.mark.parametrize("forget", FORGETTING)
def test_nodes_that_all_forgot_are_new_to_clients_that_run_too(three: list[RedisServer], forget: str) -> None:
    with met(three) as client, met(three) as another:
        held = client.lock("y", on_lost="flag").acquire()
        for server in three:
            FORGETTING[forget](server)
        for each in (another, client):
            until(lambda each=each: is_granted(each), "they are a set again")  # type: ignore[misc]  # a lambda's default
        with pytest.raises(LeaseLost):
            held.renew()
        with another.lock("y") as lease:
            assert lease.fence > held.fence


def test_a_majority_that_was_flushed_is_told_with_what_to_do(three: list[RedisServer]) -> None:
    with met(three) as client:
        fence = client.show("x").fence
        for server in three[:2]:
            server.command("FLUSHALL")
        with pytest.raises(StoreUnavailable, match=r"2 have no memory.*see dibs reseed"):
            client.lock("x").try_acquire()
        reseed(url(three), fence + 1)
        until(lambda: is_granted(client), "it goes on")


def test_a_node_that_was_a_replica_for_a_while_has_the_memory_of_another_and_does_not_vote(
    start_redis: Callable[..., RedisServer],
) -> None:
    nodes = [start_redis() for _ in range(3)]
    with met(nodes) as client:
        nodes[0].replicate(nodes[1])
        assert is_granted(client)
        nodes[0].command("REPLICAOF", "NO", "ONE")
        assert nodes[0].command("HGET", NODE, "set") is not None
        until(lambda: is_granted(client) and nodes[0].command("HGET", NODE, "set") is None, "it was found out")
        with connect(nodes) as newcomer:  # to whom they are not one server
            assert is_granted(newcomer)
            assert any("memory" in remark for remark in newcomer.show("x").remarks)


@pytest.mark.parametrize("words", [("CONFIG", "RESETSTAT"), ("DEBUG", "RELOAD"), ("SCRIPT", "FLUSH", "SYNC")])
def test_what_an_administrator_does_without_taking_a_memory_is_not_noticed(
    three: list[RedisServer], words: tuple[str, ...]
) -> None:
    with met(three) as client, client.lock("x", ttl=30) as lease:
        for server in three:
            server.command(*words)
        lease.renew()
        assert not client.show("x").remarks
        with connect(three) as another:
            assert another.lock("x").try_acquire() is None


@pytest.mark.parametrize(
    ("nodes", "floor", "problem"), [("memory:", 1, "only a redlock"), ("redlock://a,b,c", True, "floor=True")]
)
def test_what_cannot_be_reseeded_is_refused_before_anything_is_sent(nodes: str, floor: int, problem: str) -> None:
    with pytest.raises(Misuse, match=problem):
        reseed(nodes, floor)


def test_nodes_are_reseeded_all_or_it_is_told_which_are_not(three: list[RedisServer]) -> None:
    with met(three):
        three[1].kill9()
        with pytest.raises(StoreUnavailable, match="all nodes have to be there") as refused:
            reseed(url(three), 1)
        assert list(refused.value.causes) == [f"127.0.0.1:{three[1].port}"]
        with pytest.raises(Misuse, match="no fence is above"):
            reseed(url(three), 2**53 - 1)
        with pytest.raises(Misuse, match="floor=0"):
            reseed(url(three), 0)


@pytest.mark.parametrize("forget", FORGETTING)
def test_a_node_that_forgot_votes_again_when_it_has_waited(
    start_redis: Callable[..., RedisServer], clock: Clock, forget: str
) -> None:
    nodes = [start_redis(clock=clock), start_redis(), start_redis()]
    with met(nodes) as client:
        FORGETTING[forget](nodes[0])
        with client.lock("x", ttl=5) as lease:
            fence = lease.fence
        assert nodes[0].command("HGET", NODE, "set") is None
        until(lambda: is_granted(client) and bool(nodes[0].command("HGET", NODE, "back")), "noticed")
        clock.shift(40)  # longer than any ttl that was asked for

        def voting() -> bool:
            with client.lock("x", ttl=5):
                return bool(nodes[0].command("EXISTS", KEY))

        until(voting, "it votes again")
        assert int(nodes[0].command("HGET", NODE, "floor")) >= fence
        assert not client.show("x").remarks


# --- which nodes -------------------------------------------------------------------------------------------------


def test_one_server_under_two_addresses_is_refused(three: list[RedisServer]) -> None:
    twice = f"redlock://127.0.0.1:{three[0].port},localhost:{three[0].port},127.0.0.1:{three[1].port}/0"
    with dibs.connect(twice) as client, pytest.raises(Misuse, match="one server"):
        client.lock("x").try_acquire()


def test_two_databases_of_one_server_are_refused(three: list[RedisServer]) -> None:
    nodes = [f"redis://127.0.0.1:{three[0].port}/{database}" for database in range(2)]
    with pytest.raises(Misuse, match="named twice"):
        dibs.connect([*nodes, three[1].url])


def test_clients_that_name_different_sets_are_refused(five: list[RedisServer]) -> None:
    met(five).close()
    with connect(five[:3]) as client, pytest.raises(Misuse, match="a set of 5"):
        client.lock("x").try_acquire()


def test_a_set_begins_when_all_its_nodes_are_there(three: list[RedisServer]) -> None:
    three[2].kill9()
    with connect(three) as client:
        with pytest.raises(StoreUnavailable, match="when a set begins"):
            client.lock("x").try_acquire()
        three[2].start()
        until(lambda: is_granted(client), "it begins")


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_nodes_are_refused(count: int) -> None:
    with pytest.raises(Misuse, match="at least three"):
        dibs.connect("redlock://" + ",".join(f"h{number}" for number in range(count)))


def test_an_even_number_of_nodes_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dibs"):
        dibs.connect("redlock://h1,h2,h3,h4").close()
    assert "no more losses than one of 3" in caplog.text


def test_clients_of_redis_py_are_nodes_too(three: list[RedisServer]) -> None:
    import redis  # noqa: PLC0415

    clients = [redis.Redis(port=server.port, decode_responses=True) for server in three]
    with dibs.connect(clients) as client, client.lock("x") as lease:
        assert lease.fence > 0
    for each in clients:
        each.close()


# --- nothing is left ---------------------------------------------------------------------------------------------


def test_a_late_grant_does_not_stay(three: list[RedisServer]) -> None:
    """The node stood still while the lock was asked for and given back; then it does all that it was told."""
    with met(three) as client:
        three[0].stop()
        for _ in range(3):
            with client.lock("x"):
                pass
        three[0].cont()
        until(lambda: not any(holders(three)), "nothing is left", 5)
        with client.lock("x"):
            pass
        until(lambda: not any(holders(three)), "nothing is left", 5)


def test_a_thousand_cycles_with_a_hung_node_leak_nothing(five: list[RedisServer]) -> None:
    with met(five) as client:
        five[2].stop()
        with client.lock("x"):
            pass
        gc.collect()
        threads, sockets = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for _ in range(1000):
            with client.lock("x"):
                pass
        assert threading.active_count() <= threads
        assert len(os.listdir("/proc/self/fd")) <= sockets
        five[2].cont()
        until(lambda: not any(holders(five)), "nothing is left", 5)


def test_a_lost_reply_leaves_nothing(
    three: list[RedisServer], fault_proxy: Callable[[RedisServer], FaultProxy]
) -> None:
    proxies = [fault_proxy(server) for server in three]
    text = "redlock://" + ",".join(f"127.0.0.1:{proxy.address[1]}" for proxy in proxies)
    with dibs.connect(text) as client:
        with client.lock("x"):
            pass
        for proxy in proxies[:2]:
            proxy.drop_reply(to=b"EVALSHA")
        lease = client.lock("x").acquire(timeout=2)  # asked again, with the same token
        lease.release()
        until(lambda: not any(holders(three)), "nothing is left", 5)


def test_a_flush_of_the_scripts_is_not_noticed(three: list[RedisServer]) -> None:
    with met(three) as client:
        for _ in range(10):
            for server in three:
                server.command("SCRIPT", "FLUSH", "SYNC")
            with client.lock("x") as lease:
                for server in three[:2]:
                    server.command("SCRIPT", "FLUSH", "SYNC")
                lease.renew()

        def nothing_is_left() -> bool:
            client.show("x")  # a node that had lost the script says so late, and the next caller sends it again
            return not any(holders(three))

        until(nothing_is_left, "nothing is left")


def test_a_fork_leaves_the_parents_connections_alone(three: list[RedisServer], tmp_path: Path) -> None:
    with met(three) as client, client.lock("x") as lease:
        child = os.fork()
        if child == 0:
            with client.lock("y"):
                os._exit(0 if client.lock("x").try_acquire() is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.renew()


# --- one step at a time ------------------------------------------------------------------------------------------


def test_a_vote_is_taken_back_for_its_own_attempt_only(three: list[RedisServer]) -> None:
    """What a late message takes back must not be the grant that a later ask with the same token got."""
    runtime = ThreadRuntime()
    store = open_url(url(three), "default", runtime)
    ask = Ask("x", runtime.token(), 5.0, "", queue=False)
    assert isinstance(run(store.grant(ask, 1.0)), Grant)
    late = store._granting._calls(ask, b"-").withdraw  # of an attempt that came after, and is older than the next
    assert isinstance(run(store.grant(ask, 1.0)), Grant)
    replies, _ = run(store._broadcast.ask_each(late, 1.0))
    assert list(replies.values()) == [0, 0, 0]
    assert all(holders(three))
    run(store.close())


def test_a_proposal_from_the_far_future_is_refused(three: list[RedisServer]) -> None:
    runtime = ThreadRuntime()
    store = open_url(url(three), "default", runtime)
    now = store._granting.proposal
    store._granting.proposal = lambda: now() + 2 * 86_400_000_000
    with pytest.raises(StoreUnavailable, match="more than a day behind"):
        run(store.grant(Ask("x", runtime.token(), 5.0, "", queue=False), 1.0))
    run(store.close())


def test_split_votes_are_resolved(five: list[RedisServer]) -> None:
    """Many clients that ask at the same moment all get the lock, one after the other."""
    clients = [Client(open_url(url(five), "default", ThreadRuntime()), ThreadRuntime()) for _ in range(6)]
    fences: list[int] = []

    def work(client: Client) -> None:
        for _ in range(5):
            lease = run(client.lock("x").acquire(timeout=20))
            fences.append(lease.fence)
            run(lease.release())

    crowd = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(30)
    assert len(set(fences)) == 30
    assert fences == sorted(fences)
    for client in clients:
        run(client.close())


def test_busy_says_when_the_votes_are_free(three: list[RedisServer]) -> None:
    runtime = ThreadRuntime()
    store = open_url(url(three), "default", runtime)
    assert isinstance(run(store.grant(Ask("x", runtime.token(), 3.0, "", queue=False), 1.0)), Grant)
    busy = run(store.grant(Ask("x", runtime.token(), 30.0, "", queue=False), 1.0))
    assert isinstance(busy, Busy)
    assert 2 < busy.retry_in <= 3
    run(store.close())


def test_a_renewed_vote_is_not_taken_back_by_what_was_sent_for_an_attempt_before(three: list[RedisServer]) -> None:
    """A lost attempt had it, and its withdrawal is stuck; the attempt that won has not reached that node."""
    with connect(three) as client:
        lease = client.lock("x", ttl=60).acquire(timeout=0)
        client.renew(lease.to_str())
        until(lambda: all(f"!{scripts.KEPT}:" in (server.command("GET", KEY) or "") for server in three), "all renew")
        for server in three:
            assert server.command("EVAL", scripts.WITHDRAW.text, 1, KEY, lease.token, 1000) == 0
        assert all(holders(three))


def test_a_renewal_corrects_the_end_of_votes_on_nodes_whose_clock_was_set_back(three: list[RedisServer]) -> None:
    with connect(three) as client:
        lease = client.lock("x", ttl=60).acquire(timeout=0)
        for server in three:
            server.command("PEXPIRE", KEY, 3_600_000)
        client.renew(lease.to_str())
        until(lambda: all(server.command("PTTL", KEY) < 70_000 for server in three), "all have corrected it")
