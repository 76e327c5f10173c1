"""The rows of PostgreSQL on a real server: the contract, and what is special about rows, messages and transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import dibs
from dibs.errors import LossReason, Misuse, StoreUnavailable
from dibs.runtime import run
from dibs.stores.postgres.port.pool import Port
from dibs.stores.postgres.rows.grant import LAST_FENCE
from dibs.stores.postgres.rows.store import PostgresStore
from dibs.stores.store import Busy, Grant, PartlyRenewed
from dibs.testing.contract import StoreContract
from servers.pgbouncer import PgBouncer
from servers.postgres import PostgresServer
from servers.process import until
from stores.rows import RUNTIME, Steps, steps
from tempo import took


class TestContract(StoreContract):
    """As a user who may do what the docs name and nothing else."""

    runtimes = ("threads", "asyncio")

    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.url_of_locker()


@contextmanager
def transaction_on(server: PostgresServer, *names: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A transaction of somebody who forgot to commit, and keeps the rows of *names*."""
    with server.connect() as zombie, zombie.transaction(force_rollback=True):
        zombie.execute("UPDATE dibs_lease SET note = 'zombie' WHERE name = ANY (%s)", (list(names),))
        yield zombie


def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are sent from now on."""
    names: list[str] = []
    do = Port.do

    async def noting(port: Port, until: float, *transactions: Any, token: str = "") -> Any:
        names.extend(call.statement.name.decode()[5:] for transaction in transactions for call in transaction)
        return await do(port, until, *transactions, token=token)

    monkeypatch.setattr(Port, "do", noting)
    return names


# --- rows ----------------------------------------------------------------------------------------------------------


def test_a_free_lock_costs_one_statement_to_take_and_one_to_give_back(
    ours: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sent(monkeypatch)
    ours.release(ours.take())
    assert names == ["take", "release"]


def test_any_number_of_renewals_is_one_statement(ours: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [ours.take(f"name {number}") for number in range(50)]
    names = sent(monkeypatch)
    assert ours.renew(*claims) == [None] * 50
    assert names == ["renew_free"]


def test_a_row_is_never_deleted(ours: Steps, postgres: PostgresServer) -> None:
    first = ours.take()
    ours.release(first)
    ended = ours.take(ttl=0.05)
    assert ended.fence > first.fence
    postgres.wait_until("SELECT ends_at < clock_timestamp() FROM dibs_lease")
    last = ours.take()
    assert last.fence > ended.fence
    ours.release(last)
    assert postgres.do("SELECT fence FROM dibs_lease") == [(last.fence,)]


def test_the_fence_is_the_servers_clock_or_one_more_than_the_last(ours: Steps, postgres: PostgresServer) -> None:
    [(now,)] = postgres.do("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    first = ours.take()
    assert now < first.fence < now + 60_000_000
    ours.release(first)
    ahead = now + 3_600_000_000
    postgres.do("UPDATE dibs_lease SET fence = %s", (ahead,))  # as if the clock had been set back by an hour
    assert ours.take().fence == ahead + 1


def test_the_last_fence_is_refused_and_not_wrapped(ours: Steps, postgres: PostgresServer) -> None:
    ours.release(ours.take())
    postgres.do("UPDATE dibs_lease SET fence = %s", (LAST_FENCE,))
    with pytest.raises(StoreUnavailable, match="has reached its last number"):
        ours.grant(ours.ask())
    assert postgres.do("SELECT fence, token FROM dibs_lease") == [(LAST_FENCE, None)]


def test_names_are_kept_readable_in_the_table(ours: Steps, postgres: PostgresServer) -> None:
    for name in ("invoice:42", "a\x00b", "a\x01b", "a\x010b"):
        ours.take(name)
    stored = {row[0] for row in postgres.do("SELECT name FROM dibs_lease")}
    assert "invoice:42" in stored
    assert len(stored) == 4


def test_a_database_that_cannot_store_a_name_says_so(postgres: PostgresServer) -> None:
    postgres.do("DROP DATABASE IF EXISTS latin")
    postgres.do("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    with steps(postgres.url_of("latin")) as client:
        client.take("é")
        with pytest.raises(StoreUnavailable, match="make the database with UTF8"):
            client.take("🔒")


# --- rows that somebody else keeps locked --------------------------------------------------------------------------


def test_a_lease_has_its_whole_ttl_after_a_long_wait_for_the_row(ours: Steps, postgres: PostgresServer) -> None:
    ours.release(ours.take())
    claims = []
    with transaction_on(postgres, "x"):
        taker = threading.Thread(target=lambda: claims.append(ours.take(ttl=10)))
        taker.start()
        postgres.wait_until("SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        postgres.wait_until(
            "SELECT clock_timestamp() > query_start + interval '0.2 s' FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock'"
        )
    taker.join()
    [(left,)] = postgres.do("SELECT extract(epoch FROM ends_at - since)::float8 FROM dibs_lease")
    assert left == pytest.approx(10, abs=0.001)
    assert claims


@pytest.mark.parametrize("step", ["grant", "release", "queue"])
def test_a_zombie_transaction_blocks_no_step_beyond_its_budget(
    step: str, ours: Steps, postgres: PostgresServer
) -> None:
    held = ours.take()
    ask = ours.ask(queue=True)
    if step == "grant":
        ours.release(held)
    within = 1.0  # of which the server waits for a part, and has to say so in the rest
    with transaction_on(postgres, "x"), took(within + 1), pytest.raises(StoreUnavailable, match="keeps the row"):
        if step == "grant":
            ours.grant(ours.ask(), within)
        elif step == "release":
            ours.release(held, within)
        else:
            ours.grant(ask, within)


def test_what_gave_up_on_a_zombie_happens_no_more(ours: Steps, postgres: PostgresServer) -> None:
    ours.release(ours.take())
    with transaction_on(postgres, "x"), pytest.raises(StoreUnavailable):
        ours.grant(ours.ask(), 0.1)
    assert postgres.do("SELECT token FROM dibs_lease") == [(None,)]
    ours.take(within=0.5)


def test_a_zombie_costs_only_the_lease_on_its_own_row(ours: Steps, postgres: PostgresServer) -> None:
    claims = [ours.take(name, ttl=1) for name in "abc"]
    with transaction_on(postgres, "b"), took(1.5), pytest.raises(PartlyRenewed) as partly:
        ours.renew(*[claim._replace(ttl=30) for claim in claims], within=0.3)
    answers = partly.value.answers
    assert (answers[0], answers[2]) == (None, None)
    assert isinstance(answers[1], StoreUnavailable)
    left = dict(postgres.do("SELECT name, extract(epoch FROM ends_at - clock_timestamp()) > 20 FROM dibs_lease"))
    assert left == {"a": True, "b": False, "c": True}


# --- news of a loss ------------------------------------------------------------------------------------------------


def test_a_loss_is_told_before_a_row_is_waited_for(
    ours: Steps, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, locked = ours.take("lost"), ours.take("locked")
    ours.release(lost)
    names = sent(monkeypatch)
    with transaction_on(postgres, "locked"), pytest.raises(PartlyRenewed) as partly:
        ours.renew(lost, locked, within=5)
    assert partly.value.answers[0] is LossReason.TAKEN
    assert names == ["renew_free"]


@pytest.mark.parametrize("failing", ["_renew_whole", "_renew_shares"])
def test_what_is_known_of_some_is_told_although_the_others_cannot_be_asked_for(
    ours: Steps, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    claims = [ours.take("whole"), ours.take("part", shared=True)]

    async def fail(*args: object) -> None:
        raise StoreUnavailable("here", "no")

    monkeypatch.setattr(ours.store, failing, fail)
    with pytest.raises(PartlyRenewed) as partly:
        ours.renew(*claims)
    assert partly.value.answers[failing == "_renew_whole"] is None
    assert isinstance(partly.value.answers[failing == "_renew_shares"], StoreUnavailable)


def test_a_release_says_that_nothing_was_held_although_nobody_can_say_why(
    ours: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = ours.take()
    ours.release(lost)
    assert isinstance(ours.store, PostgresStore)

    async def fail(*args: object) -> None:
        raise StoreUnavailable("here", "no")

    monkeypatch.setattr(ours.store._asking, "_leave", fail)
    assert ours.release(lost) is LossReason.TAKEN


@pytest.mark.parametrize("shared", [False, True])
def test_of_several_that_were_broken_each_is_told_so(ours: Steps, theirs: Steps, *, shared: bool) -> None:
    broken = []
    for _ in range(3):
        broken.append(claim := ours.take(shared=shared))
        assert run(theirs.store.evict("x", claim.fence, "it hangs", 5.0))
    assert ours.renew(*broken) == [LossReason.EVICTED] * 3
    assert [ours.release(claim) for claim in broken] == [LossReason.EVICTED] * 3
    assert run(theirs.store.show("x", 5.0)).evicted.fence == broken[-1].fence  # type: ignore[union-attr]  # it was


# --- messages ------------------------------------------------------------------------------------------------------


def test_nobody_is_notified_where_nobody_waits(ours: Steps, theirs: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sent(monkeypatch)
    claim = ours.take()
    assert isinstance(theirs.grant(theirs.ask()), Busy)
    ours.release(claim)
    assert "wake" not in names
    ours.take()
    theirs.grant(waiting := theirs.ask(queue=True))
    theirs.release(waiting)
    names.clear()
    assert "wake" not in names


def test_only_the_first_in_line_is_notified(ours: Steps, postgres: PostgresServer) -> None:
    held = ours.take()
    clients = [Steps(postgres.url) for _ in range(3)]
    asks = [client.ask(queue=True) for client in clients]
    for client, ask in zip(clients, asks, strict=True):
        assert isinstance(client.grant(ask), Busy)
    lines = dict(postgres.do("SELECT token, channel FROM dibs_waiter"))
    with postgres.connect() as spy:
        for ask in asks:
            spy.execute(f"LISTEN {lines[ask.token]}".encode())
        ours.release(held)
        assert [note.payload for note in spy.notifies(timeout=0.2)] == [asks[0].token]
    for client in clients:
        client.close()


def test_a_message_wakes_a_waiter_long_before_it_would_look(ours: Steps, theirs: Steps) -> None:
    held = ours.take()
    ask = theirs.ask(queue=True)
    busy = theirs.grant(ask)
    assert isinstance(busy, Busy)
    threading.Timer(0.1, lambda: ours.release(held)).start()
    with took(2):
        theirs.wait(ask, busy)
    assert isinstance(theirs.grant(ask), Grant)


def test_a_waiter_whose_listener_is_gone_is_passed_over_at_once(ours: Steps, postgres: PostgresServer) -> None:
    held, dead = ours.take(), Steps(postgres.url)
    assert isinstance(dead.grant(dead.ask(queue=True)), Busy)
    with steps(postgres.url) as alive:
        ask = alive.ask(queue=True)
        busy = alive.grant(ask)
        assert isinstance(busy, Busy)
        dead.close()
        postgres.wait_until("SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        with took(2):
            ours.release(held)
            alive.wait(ask, busy)
            assert isinstance(alive.grant(ask), Grant)
    assert postgres.do("SELECT count(*) FROM dibs_waiter") == [(0,)]


def test_waiters_whose_listener_was_terminated_still_get_the_lock(ours: Steps, postgres: PostgresServer) -> None:
    held = ours.take()
    with dibs.connect(postgres.url) as client:
        fences: list[int] = []

        def wait() -> None:
            with client.lock("x") as lease:
                fences.append(lease.fence)

        waiter = threading.Thread(target=wait)
        waiter.start()
        postgres.wait_until("SELECT count(*) = 1 FROM dibs_waiter")
        assert postgres.terminate("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        ours.release(held)
        waiter.join(5)
    assert fences


# --- through a pooler ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pooler(shared_postgres: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(shared_postgres, "transaction") as pooler:
        yield pooler


class TestContractThroughAPooler(StoreContract):
    """All of it, in threads: nothing in the pooler knows what runs in the client."""

    runtimes = ("threads",)

    @pytest.fixture
    def url(self, pooler: PgBouncer) -> str:
        return pooler.reset().url


def test_rows_work_through_a_transaction_pooler(
    postgres: PostgresServer, pooler: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    clients = [dibs.connect(pooler.url) for _ in range(4)]
    inside = most = 0
    fences: list[int] = []

    def work(client: dibs.Client) -> None:
        nonlocal inside, most
        for _ in range(4):
            with client.lock("x") as lease:
                inside += 1
                most = max(most, inside)
                fences.append(lease.fence)
                time.sleep(0.002)  # so that an overlap would show
                inside -= 1

    workers = [threading.Thread(target=work, args=(client,)) for client in clients]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert most == 1
    assert len(fences) == 16
    assert fences == sorted(fences)
    for client in clients:
        client.close()
    assert [record.getMessage().count("looks every 0.1 s") for record in caplog.records] == [1] * 4


def test_nothing_is_left_in_the_sessions_of_a_pooler(postgres: PostgresServer, pooler: PgBouncer) -> None:
    with dibs.connect(pooler.url) as client:
        with client.lock("x"):
            pass
        with psycopg.connect(pooler.url, autocommit=True) as shared:
            assert shared.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
            assert shared.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_a_session_pooler_can_be_named_and_then_messages_come(postgres: PostgresServer) -> None:
    with PgBouncer(postgres, "session", size=10) as pooler, steps(f"{pooler.url}?pooler=session") as client:
        held, ask = client.take(), client.ask(queue=True)
        assert isinstance(client.grant(ask), Busy)
        assert postgres.do("SELECT channel IS NOT NULL FROM dibs_waiter") == [(True,)]
        client.release(held)
        client.release(ask)


# --- tables and rights ---------------------------------------------------------------------------------------------


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The URL of a database that is new."""
    postgres.do("DROP DATABASE IF EXISTS fresh")
    postgres.do("CREATE DATABASE fresh")
    return postgres.url_of("fresh")


def test_clients_that_come_first_at_once_make_the_tables_once(database: str) -> None:
    fences: list[int] = []

    def come(number: int) -> None:
        with steps(database) as client:
            fences.append(client.take(f"name {number}").fence)

    comers = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    for comer in comers:
        comer.start()
    for comer in comers:
        comer.join()
    assert len(fences) == 6


def test_a_user_who_may_not_make_the_tables_is_told_what_to_run(database: str, postgres: PostgresServer) -> None:
    postgres.do("DROP ROLE IF EXISTS guest")
    postgres.do("CREATE ROLE guest LOGIN")
    url = postgres.url_of("fresh", user="guest")
    with steps(url) as guest, pytest.raises(StoreUnavailable) as refused:
        guest.take()
    assert "GRANT CREATE ON SCHEMA public" in str(refused.value)
    assert "dibs init --sql" in str(refused.value)
    with steps(database) as owner:
        owner.take("made by the owner")
    with steps(url) as guest, pytest.raises(StoreUnavailable) as refused:
        guest.take()
    grant = str(refused.value).partition("run: ")[2].partition(" (permission")[0]
    with psycopg.connect(database, autocommit=True) as owner_connection:
        owner_connection.execute(grant.encode())
    with steps(url) as guest:
        held = guest.take()
        assert isinstance(guest.grant(guest.ask(queue=True)), Busy)
        guest.release(held)
    for each in (url, url.replace("postgresql:", "postgresql+advisory:")):
        with steps(each) as guest:
            guest.release(guest.take("y", shared=True))


def test_tables_of_another_version_are_refused(database: str) -> None:
    with steps(database) as client:
        client.take()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("COMMENT ON TABLE dibs_lease IS 'dibs schema 2: from the future'")
    with steps(database) as client, pytest.raises(Misuse, match="made by another version of dibs"):
        client.take()


def test_a_table_of_another_program_is_left_alone(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE dibs_lease (mine text)")
    with steps(database) as client, pytest.raises(Misuse, match="that dibs did not make"):
        client.take()


# --- what a caller has already -------------------------------------------------------------------------------------


def test_a_pool_or_connection_that_the_caller_has_says_where_the_database_is(postgres: PostgresServer) -> None:
    with ConnectionPool(postgres.url, open=True, min_size=1, kwargs={"autocommit": True}) as pool:
        with dibs.connect(pool) as client, client.lock("x") as lease:
            assert lease.fence
        with pool.connection() as connection, dibs.connect(connection) as client, client.lock("x"):
            assert pool.get_stats()["pool_available"] == 0  # ours has its own


def test_a_pool_of_the_other_colour_is_refused(postgres: PostgresServer) -> None:
    pool: AsyncConnectionPool[Any] = AsyncConnectionPool(postgres.url, open=False)
    with pytest.raises(Misuse, match=r"dibs\.aio\.connect"):
        dibs.connect(pool)


def test_evicting_names_who_did_it(ours: Steps, theirs: Steps) -> None:
    held = ours.take()
    assert run(theirs.store.evict("x", held.fence, "it hangs", 5.0))
    state = run(ours.store.show("x", 5.0))
    assert state.evicted is not None
    assert state.evicted.by.endswith(f"pid {RUNTIME.pid()}")
    assert ours.renew(held) == [LossReason.EVICTED]


def until_free(client: Steps, name: str = "x") -> Callable[[], bool]:
    return lambda: isinstance(client.grant(client.ask(name)), Grant)


def test_an_unanswered_grant_is_given_back_after_it_and_not_before(ours: Steps, postgres: PostgresServer) -> None:
    """The server is slow: the release that follows a grant that nobody waited for frees the lock all the same."""
    ours.release(ours.take())
    ask = ours.ask()
    with transaction_on(postgres, "x"), pytest.raises(StoreUnavailable):
        ours.grant(ask, 0.02)
    ours.release(ask)
    with steps(postgres.url) as other:
        until(until_free(other), "the lock is free", 1.0)


@pytest.mark.parametrize("shared", [False, True])
def test_a_renewal_corrects_an_end_that_a_clock_which_was_set_back_has_moved(
    ours: Steps, postgres: PostgresServer, shared: bool
) -> None:
    held = ours.take(ttl=5, shared=shared)
    for table in ("dibs_lease", "dibs_share"):
        postgres.do(f"UPDATE {table} SET ends_at = ends_at + interval '1 hour'")
    assert ours.renew(held._replace(longest=7)) == [None]
    left = "SELECT max(extract(epoch FROM ends_at - clock_timestamp())) FROM dibs_lease"
    assert postgres.do(left)[0][0] <= 7
    assert ours.renew(held._replace(ttl=0.1, longest=7)) == [None]
    assert postgres.do(left)[0][0] > 0.1
