"""Shared session locks of PostgreSQL on a real server: who goes together, who waits, one lock for those of a client."""

from __future__ import annotations

import threading

import psycopg
import pytest

import dibs
from dibs.errors import LeaseLost, LossReason, NotAcquired, NotSupported, StoreUnavailable
from dibs.holder import LockState
from dibs.postgres import xact_lock
from dibs.runtime import run
from dibs.stores.postgres.advisory.key import advisory_key
from dibs.stores.postgres.advisory.store import PostgresAdvisoryStore
from dibs.stores.postgres.port.statement import Call, Statement
from dibs.stores.store import Ask, Busy, Claim, Grant
from dibs.testing.proxy import FaultProxy
from servers.postgres import HOST, PostgresServer
from stores.rows import Steps, steps

HAVE = "SELECT count(*) = %s FROM pg_locks WHERE locktype = 'advisory' AND granted"

ROWS = "SELECT count(*) = %s FROM dibs_advisory_share"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url_of(scheme="postgresql+advisory")


@pytest.fixture
def steps_url(url: str) -> str:
    return url


def share(client: Steps, name: str = "x") -> Claim:
    return client.take(name, shared=True)


def refused(client: Steps, *, shared: bool = False, queue: bool = False) -> Ask:
    """An ask that was just refused."""
    ask = client.ask(shared=shared, queue=queue)
    assert isinstance(client.grant(ask), Busy)
    return ask


def state(client: Steps) -> LockState:
    return run(client.store.show("x", 5.0))


def in_session(client: Steps, sql: str) -> int:
    """Do *sql* in the only session of *client*; its process."""
    store = client.store
    assert isinstance(store, PostgresAdvisoryStore)
    [session] = store._sessions.known
    run(session.run(session._runtime.now() + 5, [Call(Statement("theirs", sql))]))
    return session.pid


# --- together ------------------------------------------------------------------------------------------------------


def test_those_of_one_client_who_share_a_name_have_one_lock_and_the_last_unlocks(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    claims = [share(ours) for _ in range(50)]
    assert postgres.sees(HAVE, (1,))()
    assert ours.renew(*claims) == [None] * 50
    assert [ours.release(claim) for claim in claims[1:]] == [None] * 49
    refused(theirs)
    assert ours.release(claims[0]) is None
    assert postgres.sees(HAVE, (0,))()
    assert postgres.sees(ROWS, (0,))()
    theirs.take()


def test_those_who_share_one_name_are_one_lock_of_those_a_process_may_have(url: str) -> None:
    with steps(f"{url}?max_locks=2") as client:
        for _ in range(5):
            share(client)
        share(client, "y")
        share(client, "y")
        with pytest.raises(NotSupported, match="holds 2 session locks"):
            share(client, "z")


def test_one_client_shares_a_name_with_nobody_who_has_all_of_it(ours: Steps, theirs: Steps) -> None:
    """Nor with itself, although its session would be given the lock."""
    claim = ours.take()
    refused(ours, shared=True)
    refused(theirs, shared=True)
    ours.release(claim)
    claim = share(ours)
    refused(ours)
    refused(theirs)
    ours.release(claim)
    ours.take()


def test_threads_of_clients_that_read_and_write_never_meet(url: str, postgres: PostgresServer) -> None:
    readers, writers, wrong = set[int](), set[int](), list[str]()

    def work(client: dibs.Client, shared: bool) -> None:
        mine = readers if shared else writers
        for _ in range(15):
            with client.lock("x", shared=shared):
                mine.add(threading.get_ident())
                if len(writers) > 1 or (writers and readers):
                    wrong.append(f"{len(writers)} write and {len(readers)} read")
                mine.discard(threading.get_ident())

    with dibs.connect(url) as one, dibs.connect(url) as two:
        workers = [
            threading.Thread(target=work, args=(client, shared))
            for client in (one, two)
            for shared in (True, True, False)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not wrong
    assert postgres.sees(ROWS, (0,))()


# --- order ---------------------------------------------------------------------------------------------------------


def test_nobody_who_reads_passes_a_writer_that_waits(url: str, ours: Steps, theirs: Steps) -> None:
    """The server sees to that, but not in a session that has the lock already."""
    reader = share(ours)
    writer = refused(theirs, queue=True)
    refused(ours, shared=True)
    with steps(url) as another:
        refused(another, shared=True)
    late = refused(ours, shared=True, queue=True)
    ours.release(reader)
    theirs.wait(writer, Busy(None, 5))
    granted = theirs.grant(writer)
    assert isinstance(granted, Grant)
    assert theirs.release(writer) is None
    ours.wait(late, Busy(None, 5))
    after = ours.grant(late)
    assert isinstance(after, Grant)
    assert after.fence > granted.fence


def test_who_waits_to_share_is_shown_so_and_leaves_nothing_when_he_goes(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    ours.take()
    reader = refused(theirs, shared=True, queue=True)
    writer = refused(theirs, queue=True)
    assert [waiting.share for waiting in state(ours).waiting] == ["shared", ""]
    theirs.release(reader)
    theirs.release(writer)
    assert postgres.sees(HAVE, (1,))()
    assert state(ours).waiting == ()


# --- who has it ----------------------------------------------------------------------------------------------------


def test_of_several_the_one_that_still_holds_it_is_named(ours: Steps, theirs: Steps) -> None:
    first, last = share(ours), share(theirs)
    theirs.release(last)
    busy = theirs.grant(theirs.ask())
    assert isinstance(busy, Busy)
    assert busy.holder is not None
    assert (busy.holder.fence, busy.holder.share) == (first.fence, "shared")


def test_a_reader_that_another_client_breaks_is_told_and_the_others_stay(url: str, ours: Steps, theirs: Steps) -> None:
    stays = share(ours)
    with dibs.connect(url) as client:
        lease = client.lock("x", shared=True).acquire()
        assert run(ours.store.evict("x", lease.fence, "it hangs", 5.0))
        assert lease.lost.wait(5)
        assert lease.lost_reason is LossReason.EVICTED
        with pytest.raises(LeaseLost):
            lease.release()
    assert [holder.fence for holder in state(theirs).holders] == [stays.fence]
    assert not run(ours.store.evict("x", lease.fence, "", 5.0))
    refused(theirs)


def test_a_client_breaks_one_of_its_own_readers_and_keeps_the_others(ours: Steps, theirs: Steps) -> None:
    first, second = share(ours), share(ours)
    assert run(ours.store.evict("x", first.fence, "", 5.0))
    assert ours.renew(first, second) == [LossReason.EVICTED, None]
    refused(theirs)
    assert ours.release(second) is None
    theirs.take()


def test_a_shared_lock_of_a_transaction_goes_together_with_that_of_a_session(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    claim = share(ours)
    with psycopg.connect(postgres.url) as conn:
        assert xact_lock(conn, "x", shared=True, timeout=0) == claim.fence
        ours.release(claim)
        refused(theirs)
        share(theirs)
        conn.commit()
        with pytest.raises(NotAcquired) as busy:
            xact_lock(conn, "x", timeout=0)
        assert busy.value.holder is not None
        assert busy.value.holder.fence == ours.fence()


# --- nothing stays in doubt ----------------------------------------------------------------------------------------


def test_who_does_not_know_whether_he_was_let_in_gives_back_and_harms_nobody(
    postgres: PostgresServer, theirs: Steps
) -> None:
    proxy = FaultProxy(postgres.address)
    with proxy, steps(f"postgresql+advisory://tests@{HOST}:{proxy.port}/postgres") as client:
        first, ask = share(client), client.ask(shared=True)
        with proxy.black_hole("replies"), pytest.raises(StoreUnavailable):
            client.grant(ask, 0.2)
        assert client.release(ask) is not None
        assert client.renew(first) == [None]
        refused(theirs)
        again = client.ask(shared=True)
        with proxy.black_hole("replies"), pytest.raises(StoreUnavailable):
            client.grant(again, 0.2)
        assert isinstance(client.grant(again), Grant)
        assert client.release(first) is None
        refused(theirs)
        assert client.release(again) is None
        theirs.take()


def test_a_row_that_cannot_be_written_leaves_no_lock_behind_and_no_other_reader_without(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    first = share(ours)
    postgres.do("ALTER TABLE dibs_advisory RENAME COLUMN fence TO away")
    try:
        with pytest.raises(StoreUnavailable):
            ours.grant(ours.ask(shared=True))
    finally:
        postgres.do("ALTER TABLE dibs_advisory RENAME COLUMN away TO fence")
    assert ours.renew(first) == [None]
    refused(theirs)
    assert ours.release(first) is None
    assert postgres.sees(HAVE, (0,))()


def test_readers_whose_session_was_unlocked_are_told_although_another_was_let_in_since(ours: Steps) -> None:
    claims = [share(ours) for _ in range(2)]
    in_session(ours, "SELECT pg_advisory_unlock_all()")
    newcomer = share(ours)
    assert ours.renew(*claims, newcomer) == [LossReason.TAKEN, LossReason.TAKEN, None]


def test_the_row_of_a_session_that_is_gone_is_not_shown_and_keeps_no_lock(
    ours: Steps, theirs: Steps, postgres: PostgresServer
) -> None:
    """Its process may have the number of one that lives."""
    ours.release(share(ours))
    for pid in (1, in_session(ours, "SELECT 1")):
        postgres.do(
            """INSERT INTO dibs_advisory_share (key, backend, token, fence, since, host, pid, login, note)
            VALUES (%s, %s, 'part-1of2-abc', 7, clock_timestamp(), 'host-a', 42, 'anna', '')""",
            (advisory_key("default", "x"), pid),
        )
    assert state(ours).holders == ()
    assert run(ours.store.holders("", 5.0)) == []
    claim = share(ours)
    assert [holder.fence for holder in state(ours).holders] == [claim.fence]
    assert ours.release(claim) is None
    theirs.take()
