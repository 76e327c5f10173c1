"""The rows of PostgreSQL when the network or the server fails: nothing unknown becomes a yes or a no."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

import dibs
from dibs.errors import LossReason, OutcomeUnknown, StoreUnavailable
from dibs.stores.store import Busy, Grant
from dibs.testing.proxy import End, FaultProxy
from servers.postgres import HOST, PostgresServer
from servers.process import until
from stores.rows import Steps, steps
from tempo import took

ENDS: tuple[End, ...] = ("fin", "rst")

LATE = 1.0
"""Seconds that a busy machine may add to a budget."""


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres.address) as proxy:
        yield proxy


@pytest.fixture
def ours(proxy: FaultProxy) -> Iterator[Steps]:
    """A client behind the proxy, connected."""
    with steps(f"postgresql://tests@{HOST}:{proxy.port}/postgres") as client:
        client.release(client.take())
        yield client
        proxy.heal()


# --- unknown outcomes ----------------------------------------------------------------------------------------------


def test_a_connection_that_dies_in_the_commit_of_a_grant_is_asked_again_and_gives_that_grant(
    ours: Steps, proxy: FaultProxy, theirs: Steps
) -> None:
    with proxy.drop_reply(b"dibs_take", end="rst") as lost:
        held = ours.take()
    assert lost.count == 1
    assert theirs.fence() == held.fence
    assert isinstance(theirs.grant(theirs.ask()), Busy)


def test_a_grant_whose_answer_never_comes_is_unknown_and_neither_yes_nor_no(
    ours: Steps, proxy: FaultProxy, theirs: Steps
) -> None:
    ask = ours.ask()
    with proxy.drop_reply(b"dibs_take", end=None), took(0.3 + LATE), pytest.raises(OutcomeUnknown):
        ours.grant(ask, 0.3)
    assert isinstance(theirs.grant(theirs.ask()), Busy)
    proxy.cut()
    until(lambda: gives_back(ours, ask), "it is given back")
    assert isinstance(theirs.grant(theirs.ask()), Grant)


def test_a_renewal_whose_connection_broke_is_done_again_at_once(ours: Steps, proxy: FaultProxy) -> None:
    held = ours.take()
    with proxy.drop("requests", b"dibs_renew", end="rst") as lost:
        assert ours.renew(held) == [None]
    with proxy.drop_reply(b"dibs_renew", end="rst") as unheard:
        assert ours.renew(held) == [None]
    assert (lost.count, unheard.count) == (1, 1)
    assert ours.release(held) is None


def test_a_release_that_never_arrived_since_its_connection_broke_is_done_again_at_once(
    ours: Steps, proxy: FaultProxy, theirs: Steps
) -> None:
    """The server ends connections that are idle, and says so at the moment in which we ask."""
    held = ours.take()
    with proxy.drop("requests", b"dibs_release", end="rst") as lost:
        assert ours.release(held) is None
    assert lost.count == 1
    assert isinstance(theirs.grant(theirs.ask()), Grant)


def test_a_release_whose_answer_is_lost_is_unknown_and_can_be_repeated(
    ours: Steps, proxy: FaultProxy, theirs: Steps
) -> None:
    held = ours.take()
    with proxy.drop_reply(b"dibs_release", end="rst"), pytest.raises(OutcomeUnknown):
        ours.release(held)
    ours.release(held)
    assert isinstance(theirs.grant(theirs.ask()), Grant)


def test_a_try_through_a_network_that_is_cut_in_the_middle_still_answers(ours: Steps, proxy: FaultProxy) -> None:
    with dibs.connect(f"postgresql://tests@{HOST}:{proxy.port}/postgres") as client:
        with client.lock("y"):
            pass
        proxy.drop_reply(b"dibs_take", end="rst")
        lease = client.lock("y").try_acquire()
        assert lease is not None
        lease.release()


# --- networks ------------------------------------------------------------------------------------------------------


def test_no_step_takes_longer_than_its_budget_when_the_network_swallows_everything(
    ours: Steps, proxy: FaultProxy
) -> None:
    held = ours.take()
    with proxy.black_hole("replies"):
        for step in (
            lambda: ours.grant(ours.ask("other"), 0.2),
            lambda: ours.renew(held, within=0.2),
            lambda: ours.release(held, 0.2),
        ):
            with took(0.2 + LATE), pytest.raises(StoreUnavailable):
                step()


def test_a_holder_that_is_cut_off_is_told_before_another_can_have_the_lock(
    ours: Steps, proxy: FaultProxy, theirs: Steps
) -> None:
    with dibs.connect(f"postgresql://tests@{HOST}:{proxy.port}/postgres") as client:
        lease = client.lock("x", ttl=0.5).acquire()
        with proxy.black_hole("requests"):
            until(lambda: isinstance(theirs.grant(theirs.ask()), Grant), "another has it")
            assert lease.lost_reason is LossReason.EXPIRED
            assert theirs.fence() > lease.fence


def test_a_server_that_accepts_and_never_answers_costs_no_more_than_the_timeout(proxy: FaultProxy) -> None:
    proxy.black_hole("replies")
    client = Steps(f"postgresql://tests@{HOST}:{proxy.port}/postgres")
    with took(0.3 + LATE), pytest.raises(StoreUnavailable, match="no answer in time"):
        client.grant(client.ask(), 0.3)


def test_connections_that_were_cut_while_idle_are_not_noticed_by_the_caller(ours: Steps, proxy: FaultProxy) -> None:
    for end in ENDS:
        assert proxy.cut(end)
        ours.release(ours.take())


# --- servers -------------------------------------------------------------------------------------------------------


def test_backends_that_were_terminated_cost_no_lease(postgres: PostgresServer, theirs: Steps) -> None:
    held = theirs.take()
    assert postgres.terminate("SELECT pid FROM pg_stat_activity WHERE application_name = 'dibs'")
    assert theirs.renew(held) == [None]
    assert theirs.release(held) is None


def test_a_grant_survives_the_crash_of_a_server_that_does_not_commit_synchronously_by_default(
    start_postgres: Callable[..., PostgresServer],
) -> None:
    """Its own default would have it forget what it said last; ours does not."""
    server = start_postgres({"synchronous_commit": "off", "wal_writer_delay": "10s"})
    with steps(server.url) as client:
        client.release(client.take())
        held = client.take()
        server.restart(signal.SIGQUIT)
        assert isinstance(client.grant(client.ask()), Busy)
        assert client.renew(held) == [None]
        assert client.fence() == held.fence


def test_the_queue_is_rebuilt_after_a_crash(start_postgres: Callable[..., PostgresServer]) -> None:
    server = start_postgres()
    fences: list[int] = []
    with steps(server.url) as holder, dibs.connect(server.url) as client:
        held = holder.take()

        def wait() -> None:
            with client.lock("x") as lease:
                fences.append(lease.fence)

        waiter = threading.Thread(target=wait)
        waiter.start()
        server.wait_until("SELECT count(*) = 1 FROM dibs_waiter")
        server.restart(signal.SIGQUIT)
        holder.release(held)
        waiter.join(10)
    assert fences
    assert fences[0] > held.fence


def test_fences_rise_over_a_failover_that_lost_the_last_grants(start_postgres: Callable[..., PostgresServer]) -> None:
    primary = start_postgres()
    with steps(primary.url) as before:
        before.release(before.take())
        with primary.copy() as standby:
            standby.wait_until("SELECT count(*) = 1 FROM dibs_lease")
            both = f"postgresql://tests@{HOST}:{primary.port},{HOST}:{standby.port}/postgres"
            with steps(both) as client:
                standby.cut_off()
                lost = client.take()
                primary.stop()
                standby.promote()
                assert standby.do("SELECT token FROM dibs_lease") == [(None,)]  # the grant did not arrive
                after = client.take()  # both believe that they hold it, and the fence tells who is newer
                assert after.fence > lost.fence
                assert client.renew(lost) == [LossReason.TAKEN]


def test_a_standby_alone_says_that_it_can_grant_nothing(start_postgres: Callable[..., PostgresServer]) -> None:
    with start_postgres().copy() as standby, steps(standby.url) as client:
        refused = pytest.raises(StoreUnavailable, match="name all servers in the URL")
        with refused:
            client.take()


# --- what cannot be connected to -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda url: url.replace("/postgres", "/nowhere"), "there is no such database"),
        (lambda url: url.replace("tests@", "nobody_at_all@"), "does not know this user"),
        (lambda url: "postgresql://tests@127.0.0.1:1/postgres", "nothing listens there"),
    ],
)
def test_what_keeps_us_from_connecting_is_said_in_a_sentence(
    change: Callable[[str], str], says: str, postgres: PostgresServer
) -> None:
    with steps(change(postgres.url)) as client, pytest.raises(StoreUnavailable, match=says):
        client.take()


def test_a_server_without_a_free_connection_says_so(postgres: PostgresServer) -> None:
    postgres.do("DROP ROLE IF EXISTS narrow")
    postgres.do("CREATE ROLE narrow LOGIN CONNECTION LIMIT 1 SUPERUSER")
    postgres.do("ALTER ROLE narrow NOSUPERUSER")
    url = postgres.url_of(user="narrow")
    with psycopg.connect(url), steps(url) as client, pytest.raises(StoreUnavailable, match="no connection left"):
        client.take()


def test_a_password_never_shows(postgres: PostgresServer) -> None:
    with steps(f"postgresql://tests:geheim@{HOST}:1/postgres") as client:
        with pytest.raises(StoreUnavailable) as refused:
            client.take()
        assert "geheim" not in f"{refused.value} {client.store!r} {refused.value.__cause__!r}"


# --- forks ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(postgres: PostgresServer) -> None:
    with dibs.connect(postgres.url) as client:
        lease = client.lock("x").acquire()
        child = os.fork()
        if child == 0:
            code = 9
            try:
                with client.lock("y") as own:
                    code = 0 if own.fence else 8
                client.close()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.renew()
        lease.release()


def gives_back(client: Steps, claim: object) -> bool:
    try:
        client.release(claim)  # type: ignore[arg-type]
    except StoreUnavailable:
        return False
    return True
