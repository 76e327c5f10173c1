"""What an administrator removes or changes under connected clients, and what other programs lock under our names."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

import dibs
from dibs.errors import LossReason, NotAcquired
from dibs.holder import Holder, LockState
from dibs.runtime import run
from dibs.stores import Busy, Grant
from dibs.stores.postgres.advisory.key import advisory_key
from servers.postgres import PostgresServer
from stores.rows import Steps, steps

DROP_ALL = """DO $$ DECLARE t text; BEGIN
    FOR t IN SELECT tablename FROM pg_tables WHERE tablename LIKE 'dibs%' LOOP EXECUTE 'DROP TABLE ' || t; END LOOP;
    END $$"""

KEY = advisory_key("default", "x")


@pytest.fixture(params=["postgresql", "postgresql+advisory"])
def steps_url(request: pytest.FixtureRequest, postgres: PostgresServer) -> str:
    return postgres.url_of(scheme=request.param)


@pytest.fixture
def locks(postgres: PostgresServer) -> Iterator[Steps]:
    """A client of session locks."""
    with steps(postgres.url_of(scheme="postgresql+advisory")) as client:
        client.release(client.take())
        yield client


def shown(client: Steps, name: str = "x") -> LockState:
    return run(client.store.show(name, 5.0))


def listed(client: Steps) -> list[Holder]:
    return run(client.store.holders("", 5.0))


@pytest.mark.parametrize("shared", [False, True])
def test_tables_that_were_dropped_are_made_again_by_connected_clients(
    ours: Steps, postgres: PostgresServer, *, shared: bool
) -> None:
    claim = ours.take(shared=shared)
    ours.release(claim)
    postgres.do(DROP_ALL)
    later = ours.take(shared=shared)
    assert later.fence > claim.fence
    assert ours.renew(later) == [None]
    assert shown(ours).fence == later.fence
    assert ours.release(later) is None


def test_every_step_makes_tables_that_were_dropped(ours: Steps, postgres: PostgresServer) -> None:
    for shared in (False, True):
        claim = ours.take(shared=shared)
        for step in (
            lambda: ours.renew(claim),  # noqa: B023 - it is called at once
            lambda: shown(ours),
            lambda: listed(ours),
            lambda: run(ours.store.evict("x", claim.fence, "", 5.0)),  # noqa: B023
            lambda: ours.release(claim),  # noqa: B023
        ):
            postgres.do(DROP_ALL)
            step()
        ours.release(ours.take())


def test_a_client_with_a_ticket_is_served_although_the_tables_were_dropped(
    steps_url: str, postgres: PostgresServer
) -> None:
    got: list[int] = []

    def wait() -> None:
        with dibs.connect(steps_url) as client, client.lock("x", timeout=50) as lease:
            got.append(lease.fence)

    with dibs.connect(steps_url) as holder:
        lease = holder.lock("x", ttl=30).acquire()
        waiter = threading.Thread(target=wait)
        waiter.start()
        postgres.wait_until(
            "SELECT EXISTS (SELECT FROM dibs_waiter) OR EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' "
            "AND NOT granted)"
        )
        postgres.do(DROP_ALL)
        try:
            lease.release()
        except dibs.LeaseLost:  # a row is gone, and with it the lease
            assert lease.lost_reason is LossReason.TAKEN
        waiter.join()
    assert got
    assert got[0] > lease.fence


@pytest.mark.parametrize("how", ["DELETE FROM dibs_lease", "TRUNCATE dibs_lease, dibs_waiter", DROP_ALL])
def test_the_holder_of_a_row_that_was_removed_is_told_and_fences_rise(postgres: PostgresServer, how: str) -> None:
    with steps(postgres.url) as ours, steps(postgres.url) as theirs:
        claim = ours.take()
        postgres.do(how)
        assert theirs.take().fence > claim.fence
        assert ours.renew(claim) == [LossReason.TAKEN]
        assert ours.release(claim) is LossReason.TAKEN


@pytest.mark.parametrize("how", ["DELETE FROM dibs_share", "TRUNCATE dibs_share", "DROP TABLE dibs_share"])
def test_those_whose_shares_were_removed_are_told_and_others_get_in(postgres: PostgresServer, how: str) -> None:
    with steps(postgres.url) as ours, steps(postgres.url) as theirs:
        claims = [ours.take(shared=True), ours.take(shared=True)]
        postgres.do(how)
        assert theirs.take(shared=True).fence > claims[-1].fence
        assert ours.renew(*claims) == [LossReason.TAKEN] * 2


def test_a_fence_that_was_lowered_by_hand_rises_above_all_that_were_given_out(
    ours: Steps, postgres: PostgresServer
) -> None:
    claim = ours.take()
    ours.release(claim)
    postgres.do("UPDATE dibs_lease SET fence = 1")
    postgres.do("UPDATE dibs_advisory SET fence = 1")
    assert ours.take().fence > claim.fence


def test_a_sequence_of_tickets_that_was_set_back_keeps_nobody_out(postgres: PostgresServer) -> None:
    with dibs.connect(postgres.url) as one, dibs.connect(postgres.url) as two, steps(postgres.url) as other:
        lease = one.lock("x").acquire()
        waiting = other.ask(queue=True)
        assert isinstance(other.grant(waiting), Busy)
        postgres.do("SELECT setval('dibs_waiter_ticket_seq', 1, false)")
        postgres.do("UPDATE dibs_waiter SET ticket = 1")
        with pytest.raises(NotAcquired):
            two.lock("x").acquire(timeout=1)
        assert other.release(waiting) is LossReason.TAKEN
        lease.release()
        two.lock("x").acquire(timeout=20)


TIMES = {
    "dibs_lease": ("ends_at", "since", "evicted_at", "record_at", "record_ends_at"),
    "dibs_share": ("ends_at", "since"),
    "dibs_advisory": ("since", "evicted_at"),
    "dibs_advisory_share": ("since",),
}


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_a_time_without_end_in_one_row_harms_no_other_name(ours: Steps, postgres: PostgresServer, value: str) -> None:
    claim = ours.take("a", shared=True)
    ours.take("x")
    ours.take("z")
    for table, columns in TIMES.items():
        for column in columns:
            where = "" if "share" in table else "WHERE name IN ('a', 'x')"
            postgres.do(f"UPDATE {table} SET {column} = '{value}' {where}")
    assert "z" in {holder.name for holder in listed(ours)}
    for name in "axz":
        shown(ours, name)
        assert isinstance(ours.grant(ours.ask(name, queue=True)), Busy | Grant)
    ours.renew(claim)
    assert all(map(str, listed(ours)))


def test_a_row_without_an_end_is_shown_so_and_can_be_broken(postgres: PostgresServer) -> None:
    with steps(postgres.url) as ours:
        ours.take()
        postgres.do("UPDATE dibs_lease SET ends_at = 'infinity'")
        [holder] = listed(ours)
        assert holder.expires_in is None
        busy = ours.grant(ours.ask())
        assert isinstance(busy, Busy)
        assert busy.retry_in >= 1
        assert run(ours.store.evict("x", holder.fence, "no end", 5.0))
        ours.take()


def test_a_waiter_that_died_is_not_shown_and_its_row_goes_though_nobody_asks_for_its_name(
    postgres: PostgresServer,
) -> None:
    with steps(postgres.url) as ours, steps(postgres.url) as dead, steps(postgres.url) as other:
        ours.take("left")
        assert isinstance(dead.grant(dead.ask("left", queue=True)), Busy)
        [waiting] = shown(ours, "left").waiting
        assert waiting.pid
        assert postgres.terminate("SELECT listener AS pid FROM dibs_waiter")
        assert shown(ours, "left").waiting == ()
        ours.take("another")
        assert isinstance(other.grant(other.ask("another", queue=True)), Busy)
        assert postgres.do("SELECT name FROM dibs_waiter") == [("another",)]


def test_what_dead_sessions_shared_is_forgotten_though_nobody_asks_for_its_name(
    locks: Steps, postgres: PostgresServer
) -> None:
    with steps(postgres.url_of(scheme="postgresql+advisory")) as dead:
        dead.take("left", shared=True)
        postgres.terminate("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
        assert postgres.do("SELECT count(*) FROM dibs_advisory_share") == [(1,)]
    locks.take("another")
    with steps(postgres.url_of(scheme="postgresql+advisory")) as other:
        ask = other.ask("another", queue=True)
        assert isinstance(other.grant(ask), Busy)
        assert postgres.do("SELECT count(*) FROM dibs_advisory_share") == [(0,)]
        other.release(ask)


# --- foreign session locks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["pg_advisory_lock", "pg_advisory_lock_shared"])
def test_the_lock_of_another_program_is_shown_as_what_it_is(locks: Steps, postgres: PostgresServer, lock: str) -> None:
    """And not as one of the client that had it long ago."""
    held = locks.take("another")
    with psycopg.connect(postgres.url, autocommit=True, application_name="psql") as foreign:
        foreign.execute(f"SELECT {lock}(%s)".encode(), [KEY])
        pid = foreign.info.backend_pid
        ask = locks.ask(queue=True)
        busy = locks.grant(ask)
        assert isinstance(busy, Busy)
        found = [busy.holder, shown(locks).holder, *(each for each in listed(locks) if each.name == "x")]
        assert len(found) == 3
        for holder in found:
            assert holder is not None
            assert (holder.name, holder.fence, holder.pid) == ("x", 0, pid)
            assert f"session {pid} of the database, psql" in holder.note
            assert f"pg_terminate_backend({pid})" in holder.note
        assert "another" in {each.name for each in listed(locks)}
        assert locks.renew(held) == [None]
    locks.wait(ask, busy, 30.0)
    assert isinstance(locks.grant(ask), Grant)


def test_a_holder_whose_row_was_deleted_is_shown_as_the_session_that_it_is(
    locks: Steps, postgres: PostgresServer
) -> None:
    locks.take()
    postgres.do("DELETE FROM dibs_advisory")
    [(pid,)] = postgres.do("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")
    holder = shown(locks).holder
    assert holder is not None
    assert holder.pid == pid
    assert "session" in holder.note


def test_a_refusal_names_who_has_the_lock_and_not_who_had_it(steps_url: str, postgres: PostgresServer) -> None:
    """The lock goes from one holder to the next while another waits in line behind both."""
    with dibs.connect(steps_url) as one, dibs.connect(steps_url) as two, dibs.connect(steps_url) as three:
        first = one.lock("x", ttl=30).acquire()
        fences: list[int] = []
        hold, refused = threading.Event(), []

        def next_holder() -> None:
            with two.lock("x", ttl=30, timeout=50) as lease:
                fences.append(lease.fence)
                hold.wait(50)

        def last_in_line() -> None:
            with pytest.raises(NotAcquired) as error:
                three.lock("x", ttl=30).acquire(timeout=6)
            refused.append(error.value)

        waiters = []
        for number, waiter in enumerate((next_holder, last_in_line), 1):
            waiters.append(threading.Thread(target=waiter))
            waiters[-1].start()
            postgres.wait_until(
                "SELECT greatest((SELECT count(*) FROM dibs_waiter), (SELECT count(*) FROM pg_locks "
                "WHERE locktype = 'advisory' AND NOT granted)) >= %s",
                [number],
            )
        first.release()
        waiters[1].join()
        hold.set()
        waiters[0].join()
    assert refused[0].holder is not None
    assert refused[0].holder.fence == fences[0]
