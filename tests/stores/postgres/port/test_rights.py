"""Which rights a user needs: the documented ones are enough, and the error of one who lacks one names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

import dibs
from dibs.errors import DibsError, LossReason, NotAcquired, StoreUnavailable
from dibs.guards import TableGuard
from dibs.optimistic import Versioned
from dibs.postgres import migration_lock
from dibs.runtime import run
from dibs.stores.postgres.port.rights import GRANT
from servers.postgres import PostgresServer
from stores.rows import Steps, steps

PAGE = Path(__file__).parents[4] / "docs" / "stores" / "postgres.md"

SCHEMES = ["postgresql", "postgresql+advisory"]


def test_the_page_names_the_rights() -> None:
    [shown] = re.findall(r"```sql\n(GRANT .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert " ".join(shown.split()) == GRANT.format(user="shop")


def everything(client: dibs.Client, other: dibs.Client, third: Steps) -> list[Callable[[], object]]:
    """Each thing that clients do, once."""

    def queued() -> None:
        with client.lock("queued", ttl=5) as lease:
            lease.renew()
            ask = third.ask("queued", queue=True)
            try:
                third.grant(ask)
            finally:
                third.release(ask)

    def shared() -> None:
        with client.lock("shared", shared=True, timeout=5), other.lock("shared", shared=True, timeout=5):
            client.show("shared")

    def recorded() -> None:
        for _ in range(2):
            with client.idempotent("recorded") as call:
                if not call.replayed:
                    call.done(1)
        for record in client.records("recorded"):
            client.forget_record("recorded", fence=record.fence)

    def several() -> None:
        with client.semaphore("several", 2, timeout=5), other.semaphore("several", 2, timeout=5):
            other.holders()

    def evicted() -> None:
        assert other.evict("evicted", fence=client.lock("evicted").acquire(timeout=0).fence)

    def led() -> None:
        with client.election("led").lead(timeout=5):
            other.election("led").leader()

    return [queued, shared, recorded, several, evicted, led]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_whoever_lacks_a_right_is_told_which_and_leaves_nothing_locked(postgres: PostgresServer, scheme: str) -> None:
    url = postgres.url_of_locker(scheme=scheme)
    for table in sorted(set(re.findall(r"dibs_\w+", GRANT))):
        sequence = table.endswith("_seq")
        postgres.do(f"REVOKE ALL ON {'SEQUENCE' if sequence else 'TABLE'} {table} FROM locker")
        refused = []
        with dibs.connect(url) as client, dibs.connect(url) as other, steps(url) as third:
            for work in everything(client, other, third):
                try:
                    work()
                except dibs.NotSupported:
                    pass
                except DibsError as error:
                    refused.append(error)
        for each in refused:
            assert isinstance(each, StoreUnavailable), (table, each)
            assert "this user lacks a right; let the owner of the tables run: GRANT SELECT" in str(each)
        postgres.url_of_locker()  # has them again
        with dibs.connect(url) as client:
            for name in ("queued", "shared", "several", "evicted", "led"):
                client.lock(name).acquire(timeout=5).release()


def test_the_sessions_of_others_may_be_ended_with_a_right_that_is_named(postgres: PostgresServer) -> None:
    url = postgres.url_of_locker(scheme="postgresql+advisory")
    postgres.do("DROP ROLE IF EXISTS breaker")
    postgres.do("CREATE ROLE breaker LOGIN")
    postgres.do(GRANT.format(user="breaker").partition(";")[0])
    with steps(url) as holder, steps(url.replace("locker@", "breaker@")) as breaker:
        claim = holder.take()
        evict = breaker.store.evict
        with pytest.raises(StoreUnavailable, match="GRANT pg_signal_backend"):
            run(evict("x", claim.fence, "it hangs", 5.0))
        assert holder.renew(claim) == [None]
        assert run(breaker.store.show("x", 5.0)).evicted is None
        postgres.do("GRANT pg_signal_backend TO breaker")
        assert run(evict("x", claim.fence, "it hangs", 5.0))
        assert holder.renew(claim) == [LossReason.EVICTED]
    postgres.do("DROP OWNED BY breaker")


def test_a_migration_needs_no_right(postgres: PostgresServer) -> None:
    url = postgres.url_of_locker()
    postgres.do("DROP ROLE IF EXISTS humble")
    postgres.do("CREATE ROLE humble LOGIN")
    engine = create_engine(url.replace("postgresql://locker@", "postgresql+psycopg://humble@"))
    refused = pytest.raises(NotAcquired)
    with engine.connect() as one, engine.connect() as two, migration_lock(one), refused, migration_lock(two, timeout=0):
        pytest.fail("two migrate at once")
    engine.dispose()


@pytest.mark.parametrize("kind", ["guard", "version"])
def test_a_guard_says_which_right_its_table_needs(postgres: PostgresServer, kind: str) -> None:
    postgres.do("DROP ROLE IF EXISTS humble")
    postgres.do("CREATE ROLE humble LOGIN")
    postgres.do(TableGuard().sql)
    postgres.do("CREATE TABLE account (id integer PRIMARY KEY, balance integer, version integer)")
    with psycopg.connect(postgres.url_of(user="humble")) as conn, pytest.raises(psycopg.Error) as refused:
        if kind == "guard":
            TableGuard().claim(conn, "x", 7)
        else:
            Versioned("account").update(conn, {"id": 1}, 1, {"balance": 2})
    assert "GRANT SELECT, INSERT, UPDATE" in notes(refused.value)


def notes(error: Any) -> str:
    return "\n".join(getattr(error, "__notes__", []))
