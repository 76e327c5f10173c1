"""The session locks of PostgreSQL on a real server: the contract, few connections, and no lock that stays in doubt."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.errors import LeaseLost, LossReason, NotSupported, StoreUnavailable
from dibs.runtime import run
from dibs.stores.postgres.advisory import sessions as postgres_sessions
from dibs.stores.postgres.advisory import sql
from dibs.stores.postgres.advisory.key import advisory_key
from dibs.stores.postgres.advisory.store import PostgresAdvisoryStore
from dibs.stores.postgres.port.dial import dial
from dibs.stores.postgres.port.source import Source
from dibs.stores.postgres.port.statement import Call, Statement
from dibs.stores.store import Busy, Grant
from dibs.testing.contract import StoreContract
from dibs.testing.proxy import FaultProxy
from servers.pgbouncer import PgBouncer
from servers.postgres import HOST, PostgresServer
from servers.process import until
from stores.rows import Steps, steps
from tempo import took

LOCKS = "SELECT count(*) = %s FROM pg_locks WHERE locktype = 'advisory' AND granted"

WAITS = "SELECT count(*) = %s FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"

OURS = "FROM pg_stat_activity WHERE application_name = 'dibs'"

AT_ONCE = 2.0
"""Seconds, on a busy machine; the leases here have a ttl of 30 s."""


class TestContract(StoreContract):
    """As a user who may do what the docs name and nothing else."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url_of_locker(scheme="postgresql+advisory")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url_of(scheme="postgresql+advisory")


@pytest.fixture
def steps_url(url: str) -> str:
    return url


def sessions(client: Steps) -> Any:
    store = client.store
    assert isinstance(store, PostgresAdvisoryStore)
    return store._sessions


def through(proxy: FaultProxy) -> str:
    return f"postgresql+advisory://tests@{HOST}:{proxy.port}/postgres"


def behind(proxy: FaultProxy) -> dibs.Client:
    return dibs.connect(through(proxy))


# --- few connections -----------------------------------------------------------------------------------------------


def test_two_hundred_locks_are_held_on_one_connection_and_kept_by_one_heartbeat(
    ours: Steps, postgres: PostgresServer
) -> None:
    claims = [ours.take(f"name {number}") for number in range(200)]
    assert postgres.sees(LOCKS, (200,))()
    assert postgres.do(f"SELECT count(*) <= 2 {OURS}") == [(True,)]
    assert ours.renew(*claims) == [None] * 200
    assert [ours.release(claim) for claim in claims] == [None] * 200


def test_two_asks_of_one_client_exclude_each_other_although_the_session_would_not(ours: Steps) -> None:
    held = ours.take()
    assert isinstance(ours.grant(ours.ask()), Busy)
    ours.release(held)
    ours.release(ours.take())


def test_threads_of_one_client_never_hold_a_lock_together(url: str) -> None:
    inside = most = 0
    with dibs.connect(url) as client:

        def work() -> None:
            nonlocal inside, most
            for _ in range(5):
                lease = client.lock("x").try_acquire() or client.lock("x").acquire()
                inside += 1
                most = max(most, inside)
                inside -= 1
                lease.release()

        workers = [threading.Thread(target=work) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert most == 1


def test_a_process_cannot_fill_the_table_of_locks_that_all_share(postgres: PostgresServer, url: str) -> None:
    with steps(f"{url}?max_locks=5") as client, steps(f"{url}?max_locks=5") as second:
        for number in range(3):
            client.take(f"name {number}")
        for number in range(3, 5):
            second.take(f"name {number}")
        with pytest.raises(NotSupported, match="holds 5 session locks"):
            client.take("one more")
        postgres.do("SELECT 1")  # others can still connect


def test_the_cap_is_far_below_the_servers_table(start_postgres: Callable[..., PostgresServer]) -> None:
    server = start_postgres({"max_connections": "10", "max_locks_per_transaction": "10", "max_wal_senders": "0"})
    with steps(server.url_of(scheme="postgresql+advisory")) as client:
        with pytest.raises(NotSupported, match="endanger the table of locks"):
            for number in range(1000):
                client.take(f"name {number}")
        assert number == 10 * 10 // 8, "an eighth"
        server.do("SELECT 1")


# --- the end of a session ------------------------------------------------------------------------------------------


def test_a_holder_whose_backend_is_terminated_is_told_at_once(postgres: PostgresServer, url: str) -> None:
    with dibs.connect(url) as client, dibs.connect(url) as other:
        lease = client.lock("x", ttl=30).acquire()
        assert postgres.terminate("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
        with took(AT_ONCE):
            assert lease.lost.wait(5)
        assert lease.lost_reason is LossReason.SESSION_ENDED
        assert other.lock("x").acquire(timeout=5).fence > lease.fence
        with pytest.raises(LeaseLost):
            lease.release()


def test_a_body_is_cancelled_as_soon_as_the_server_ends_the_session(postgres: PostgresServer, url: str) -> None:
    async def main() -> None:
        async with dibs.aio.connect(url) as client:
            async with client.lock("x", ttl=30) as lease:
                await asyncio.to_thread(postgres.terminate, "SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
                await asyncio.sleep(5)
            raise AssertionError(f"{lease} was not lost")

    with took(AT_ONCE + 1), pytest.raises(LeaseLost, match="session ended"):
        asyncio.run(main())


def test_a_holder_is_told_that_its_session_ended_before_anything_is_asked(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be out of reach, and another may have the lock already."""
    asked: list[Source] = []
    told: list[tuple[int, LossReason]] = []

    async def dial_and_tell(source: Source, *rest: Any) -> Any:
        asked.append(source)
        return await dial(source, *rest)

    with FaultProxy(postgres.address) as proxy, steps(through(proxy)) as client:
        client.take()
        client.store.on_loss(lambda name, token, reason: told.append((len(asked), reason)))
        monkeypatch.setattr(postgres_sessions, "dial", dial_and_tell)
        proxy.black_hole("replies")
        proxy.cut("rst")
        until(lambda: bool(told), "the loss is told")
        assert told == [(0, LossReason.SESSION_ENDED)]


def test_a_loss_is_told_before_another_session_is_asked(ours: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """That other one may hang for as long as a renewal may take."""
    lost, held = ours.take("lost"), ours.take("held")
    told: list[str] = []
    ours.store.on_loss(lambda name, token, reason: told.append(f"{name}: {reason}"))
    ours.release(lost)
    [session] = sessions(ours).known
    beat = session.run

    async def run_later(*args: Any) -> Any:
        told.append("asked")
        return await beat(*args)

    monkeypatch.setattr(session, "run", run_later)
    assert ours.renew(held, lost) == [None, LossReason.TAKEN]
    assert told == ["lost: taken", "asked"]


def test_a_lock_that_is_taken_is_busy_although_nobody_can_say_who_has_it(
    ours: Steps, theirs: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours.take()

    async def fail(*args: object) -> None:
        raise StoreUnavailable("here", "no")

    assert isinstance(theirs.store, PostgresAdvisoryStore)
    monkeypatch.setattr(theirs.store._grants, "_busy", fail)
    answer = theirs.grant(theirs.ask())
    assert isinstance(answer, Busy)
    assert answer.holder is None


def test_a_heartbeat_finds_a_lock_that_was_unlocked_behind_us(ours: Steps, postgres: PostgresServer) -> None:
    claims = [ours.take(name) for name in "ab"]
    [session] = sessions(ours).known
    run(session.run(session._runtime.now() + 5, [Call(Statement("all", "SELECT pg_advisory_unlock_all()"))]))
    assert ours.renew(*claims) == [LossReason.TAKEN] * 2


def test_a_heartbeat_answered_by_another_session_is_the_end_of_ours(ours: Steps) -> None:
    claim = ours.take()
    [session] = sessions(ours).known
    session.pid += 1  # as a pooler does that gives the connection another session
    assert ours.renew(claim) == [LossReason.SESSION_ENDED]
    until(lambda: isinstance(ours.grant(ours.ask()), Grant), "the server has ended that session, and with it the lock")


def test_a_server_that_ends_idle_sessions_leaves_ours_alone(postgres: PostgresServer, url: str) -> None:
    postgres.do("ALTER ROLE tests SET idle_session_timeout = '100ms'")
    postgres.do("ALTER ROLE tests SET statement_timeout = '100ms'")
    try:
        with steps(url) as holder, steps(url) as waiter:
            held, ask = holder.take(), waiter.ask(queue=True)
            busy = waiter.grant(ask)
            assert isinstance(busy, Busy)
            waiter.wait(ask, busy, 0.4)
            assert holder.release(held) is None
            waiter.wait(ask, busy, 5)
            assert isinstance(waiter.grant(ask), Grant)
    finally:
        postgres.do("ALTER ROLE tests RESET ALL")
        postgres.reset()


def test_a_restart_of_the_server_ends_all_and_fences_go_on_rising(
    start_postgres: Callable[..., PostgresServer],
) -> None:
    server = start_postgres()
    with dibs.connect(server.url_of(scheme="postgresql+advisory")) as client:
        lease = client.lock("x").acquire()
        server.stop()
        with took(AT_ONCE):
            assert lease.lost.wait(5)
        server.start()
        again = client.lock("x").acquire(timeout=5)
        assert again.fence > lease.fence


def test_fences_rise_over_a_failover_to_a_standby_that_is_behind(start_postgres: Callable[..., PostgresServer]) -> None:
    primary = start_postgres()
    with steps(primary.url_of(scheme="postgresql+advisory")) as before, primary.copy() as standby:
        before.take("other")
        standby.wait_until("SELECT count(*) = 1 FROM dibs_advisory")
        hosts = f"{HOST}:{primary.port},{HOST}:{standby.port}"
        with steps(f"postgresql+advisory://tests@{hosts}/postgres") as client:
            standby.cut_off()
            lost = client.take()
            primary.stop()
            standby.promote()
            assert client.renew(lost) == [LossReason.SESSION_ENDED]
            assert client.take().fence > lost.fence


def test_a_holder_that_is_cut_off_is_lost_by_its_ttl_and_its_lock_kept(postgres: PostgresServer, url: str) -> None:
    """The server does not know; so nobody else gets the lock before the connection is given up."""
    with FaultProxy(postgres.address) as proxy, behind(proxy) as client, steps(url) as other:
        lease = client.lock("x", ttl=0.5).acquire()
        hole = proxy.black_hole("requests")
        assert lease.lost.wait(5)
        assert lease.lost_reason is LossReason.EXPIRED
        assert isinstance(other.grant(other.ask()), Busy)
        hole.lift()
        until(lambda: isinstance(other.grant(other.ask()), Grant), "it is given back when the network is", 5)


# --- nothing stays in doubt ----------------------------------------------------------------------------------------


def test_an_error_in_the_step_that_acquires_leaves_no_lock_behind(postgres: PostgresServer, ours: Steps) -> None:
    ours.release(ours.take())
    postgres.do("ALTER TABLE dibs_advisory RENAME COLUMN fence TO away")
    try:
        with pytest.raises(StoreUnavailable):
            ours.grant(ours.ask())
        assert postgres.sees(LOCKS, (0,))()
    finally:
        postgres.do("ALTER TABLE dibs_advisory RENAME COLUMN away TO fence")
    ours.take()


def test_an_answer_that_is_lost_in_the_acquire_leaves_no_lock_behind(postgres: PostgresServer) -> None:
    proxy = FaultProxy(postgres.address)
    with proxy, steps(f"postgresql+advisory://tests@{HOST}:{proxy.port}/postgres") as client:
        client.release(client.take())
        first = client.ask("y")
        with proxy.drop_reply(b"dibs_try", end="rst") as lost:
            answer = client.grant(first)  # its session is gone, so it is asked for again in another
        assert lost.count == 1
        while isinstance(answer, Busy):  # until the server has noticed that the first session is gone
            answer = client.grant(first)
        postgres.wait_until(LOCKS, (1,))
        ask = client.ask("z")
        with proxy.drop_reply(b"dibs_try", end=None), pytest.raises(StoreUnavailable):
            client.grant(ask, 0.2)
        assert postgres.sees(LOCKS, (2,))()
        proxy.cut()
        client.release(ask)
        postgres.wait_until(LOCKS, (0,))


def test_a_waiter_whose_wait_is_cancelled_by_an_administrator_is_served_later(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    held, ask = ours.take(), theirs.ask(queue=True)
    assert isinstance(theirs.grant(ask), Busy)
    postgres.do("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    postgres.wait_until(WAITS, (0,))
    with pytest.raises(StoreUnavailable, match="cancelled"):
        theirs.grant(ask)
    ours.release(held)
    assert isinstance(theirs.grant(ask), Grant)
    assert postgres.sees(LOCKS, (1,))()


def test_a_name_whose_key_belongs_to_another_name_is_refused(ours: Steps, postgres: PostgresServer) -> None:
    ours.release(ours.take("x"))
    postgres.do("UPDATE dibs_advisory SET key = %s", (advisory_key("default", "y"),))
    with pytest.raises(StoreUnavailable, match="the name 'y' has the same key as 'x'"):
        ours.take("y")
    assert postgres.sees(LOCKS, (0,))()


def test_a_lease_that_the_program_forgot_is_unlocked_after_its_ttl(url: str, theirs: Steps) -> None:
    with dibs.connect(url) as client:
        client.lock("x", ttl=0.3).acquire()
        gc.collect()
        until(lambda: isinstance(theirs.grant(theirs.ask()), Grant), "it is free", 5)


def test_who_waits_for_long_keeps_no_old_snapshot(
    ours: Steps, url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VACUUM waits for it no longer than a place in line lasts, which is less here."""
    less = sql.LINE_UP.sql.decode().replace(sql.IN_LINE, "300ms")
    monkeypatch.setattr(sql, "LINE_UP", Statement("line_up", less))
    held = ours.take()
    fences: list[int] = []

    def wait() -> None:
        with dibs.connect(url) as client, client.lock("x") as lease:
            fences.append(lease.fence)

    waiter = threading.Thread(target=wait)
    waiter.start()
    postgres.wait_until(f"SELECT count(*) = 1 FROM ({IN_LINE}) AS s", (0,))
    [(now,)] = postgres.do("SELECT txid_current()")
    postgres.wait_until(f"SELECT bool_and(age > 0) FROM ({IN_LINE}) AS s", (now,))
    ours.release(held)
    waiter.join(5)
    assert fences
    assert fences[0] > held.fence


IN_LINE = """SELECT backend_xmin::text::bigint - %s AS age FROM pg_stat_activity
    WHERE wait_event = 'advisory' AND backend_xmin IS NOT NULL"""


def test_who_asks_while_the_servers_call_is_on_its_way_is_not_told_that_the_lock_is_taken(
    ours: Steps, postgres: PostgresServer
) -> None:
    with (
        FaultProxy(postgres.address) as proxy,
        steps(f"postgresql+advisory://tests@{HOST}:{proxy.port}/postgres") as slow,
    ):
        held, ask = ours.take(), slow.ask(queue=True)
        assert isinstance(slow.grant(ask), Busy)
        proxy.delay(replies=0.1)
        ours.release(held)
        assert isinstance(slow.grant(ask), Grant)


def test_closing_a_client_that_waits_takes_it_out_of_the_line(ours: Steps, url: str, postgres: PostgresServer) -> None:
    ours.take()
    with steps(url) as waiter:
        assert isinstance(waiter.grant(waiter.ask(queue=True)), Busy)
        assert postgres.sees(WAITS, (1,))()
    assert postgres.sees(WAITS, (0,))()


# --- poolers -------------------------------------------------------------------------------------------------------


def test_a_transaction_pooler_is_refused_and_what_to_take_instead_is_said(postgres: PostgresServer) -> None:
    with PgBouncer(postgres, "transaction") as pooler:
        pooled = pooler.url.replace("postgresql:", "postgresql+advisory:")
        with steps(pooled) as client, pytest.raises(NotSupported, match="take postgresql:// "):
            client.take()
        with steps(f"{pooled}?pooler=transaction") as client, pytest.raises(NotSupported):
            client.take()
    assert postgres.sees(LOCKS, (0,))()


def test_a_session_pooler_is_accepted_when_it_is_named(postgres: PostgresServer, theirs: Steps) -> None:
    with PgBouncer(postgres, "session") as pooler:
        pooled = pooler.url.replace("postgresql:", "postgresql+advisory:")
        with steps(pooled) as client, pytest.raises(NotSupported):
            client.take()
        with steps(f"{pooled}?pooler=session") as client:
            held = client.take()
            assert isinstance(theirs.grant(theirs.ask()), Busy)
            assert client.release(held) is None


# --- processes -----------------------------------------------------------------------------------------------------

CHILD = """
import sys, dibs
client = dibs.connect(sys.argv[1])
print("asks", flush=True)
lease = client.lock("x").acquire()
print("has it", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that takes the lock x."""
    command = [sys.executable, "-c", CHILD, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asks\n"
        yield process
        process.kill()


def test_the_lock_of_a_process_that_was_killed_is_free_at_once(
    child: subprocess.Popen[str], postgres: PostgresServer, theirs: Steps
) -> None:
    postgres.wait_until(LOCKS, (1,))
    child.send_signal(signal.SIGKILL)
    with took(AT_ONCE):
        until(lambda: isinstance(theirs.grant(theirs.ask()), Grant), "it is free", 5)


def test_a_waiter_that_was_killed_leaves_the_servers_line(
    ours: Steps, postgres: PostgresServer, request: pytest.FixtureRequest
) -> None:
    ours.take()
    child = request.getfixturevalue("child")
    postgres.wait_until(WAITS, (1,))
    child.send_signal(signal.SIGKILL)
    postgres.wait_until(WAITS, (0,))


def test_a_stopped_holder_keeps_its_lock(child: subprocess.Popen[str], postgres: PostgresServer, theirs: Steps) -> None:
    postgres.wait_until(LOCKS, (1,))
    child.send_signal(signal.SIGSTOP)
    assert isinstance(theirs.grant(theirs.ask()), Busy)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_neither_ends_nor_keeps_the_session_of_its_parent(url: str, postgres: PostgresServer) -> None:
    reading, writing = os.pipe()
    client = dibs.connect(url)
    lease = client.lock("x").acquire()
    child = os.fork()
    if child == 0:
        os.close(writing)
        code = 9
        try:
            with client.lock("y"):
                client.close()
            gc.collect()
            os.read(reading, 1)  # stay until the parent has let go of its session
            code = 0
        finally:
            os._exit(code)
    os.close(reading)
    try:
        postgres.wait_until("SELECT count(*) = 1 FROM dibs_advisory WHERE name = 'y'")
        lease.renew()
        lease.release()
        client.close()
        postgres.wait_until(LOCKS, (0,))  # although the child still lives
    finally:
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_inherits_the_sockets_keeps_the_lock(url: str, theirs: Steps) -> None:
    with steps(url) as client:
        client.take()
        fds = client.store.inheritable()
        assert len(fds) == 1
        with subprocess.Popen(["sleep", "30"], pass_fds=fds) as heir:
            client.store.forked()  # as if this process had been killed: its descriptors are gone, unsaid
            assert isinstance(theirs.grant(theirs.ask()), Busy)
            heir.kill()
        until(lambda: isinstance(theirs.grant(theirs.ask()), Grant), "it is free", 5)
