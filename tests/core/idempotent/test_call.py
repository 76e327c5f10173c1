"""Work and record in one transaction of the caller's: both are there or neither, on every kind of connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.core.client import Client
from dibs.errors import LeaseLost, Misuse, NotSupported, StoreUnavailable
from dibs.ports.db.session import session_of
from dibs.runtime.asyncio import AsyncioRuntime
from dibs.runtime.threads import ThreadRuntime
from dibs.stores import open_store
from guards.callers import SOME, Caller, CallerTests, Database, done

KEY = "invoice:42 ü\0'"

ATTEMPT = 0.6
"""Seconds of a ttl that bounds one request by half of it."""


@asynccontextmanager
async def client_of(database: Database, namespace: str = "shop") -> AsyncIterator[Client]:
    """A client of the store in that database, in the colour of its connections; and a table for the work."""
    runtime = ThreadRuntime() if database.blocking else AsyncioRuntime()
    url = database._url if database.postgres else f"sqlite:///{database._url}"
    async with Client(open_store(url, namespace, runtime), runtime) as client:
        await client.record("the file of the store has to be made by the store")
        await database.do("CREATE TABLE IF NOT EXISTS charged (amount BIGINT)")
        await database.do("DELETE FROM charged")
        yield client


async def charged(database: Database) -> list[int]:
    return [amount for (amount,) in await database.do("SELECT amount FROM charged ORDER BY amount")]


async def charge(caller: Caller, amount: int) -> None:
    await caller.begin()
    await caller.do(f"INSERT INTO charged VALUES ({amount})")


class TestCommit(CallerTests):
    async def test_the_record_is_committed_with_the_work(self, database: Database) -> None:
        async with client_of(database) as client, database.caller() as caller:
            async with client.idempotent(KEY) as call:
                await charge(caller, 10)
                await done(call.commit(caller.conn, {"paid": 10}))
                assert call.result == {"paid": 10}
                await caller.commit()
                assert await client.record(KEY) is not None, "there with the commit, before the block ends"
            assert await charged(database) == [10]
            async with client.idempotent(KEY) as again:
                assert again.replayed
                assert again.result == {"paid": 10}
            await freed(client)

    async def test_a_rollback_undoes_both_and_the_next_may_try(self, database: Database) -> None:
        async with client_of(database) as client, database.caller() as caller:
            with pytest.raises(ZeroDivisionError):
                async with client.idempotent(KEY) as call:
                    await charge(caller, 10)
                    await done(call.commit(caller.conn, "paid"))
                    await caller.rollback()
                    raise ZeroDivisionError
            async with client.idempotent(KEY) as call:
                assert not call.replayed
                assert (call.attempt, call.last_error) == (2, "ZeroDivisionError")
                await charge(caller, 20)
                await done(call.commit(caller.conn, "paid"))
                await caller.commit()
            assert await charged(database) == [20]

    async def test_who_comes_late_is_refused_and_writes_nothing(self, database: Database) -> None:
        async with client_of(database) as late, client_of(database) as other, database.caller() as caller:
            with pytest.raises(LeaseLost) as lost:
                async with late.idempotent(KEY, on_lost="flag") as call:
                    await other.evict(KEY, fence=call.fence)
                    async with other.idempotent(KEY) as theirs:
                        theirs.done("theirs")
                    await charge(caller, 10)
                    try:
                        await done(call.commit(caller.conn, "ours"))
                    finally:
                        await caller.rollback()
            assert lost.value.fence == call.fence
            assert await charged(database) == []
            async with late.idempotent(KEY) as call:
                assert call.result == "theirs"

    async def test_a_transaction_may_be_run_again_in_the_block(self, database: Database) -> None:
        """As `dibs.optimistic.retry` does; and a commit that is said twice is one."""
        async with client_of(database) as client, database.caller() as caller:
            async with client.idempotent(KEY) as call:
                for attempt in (1, 2):
                    await charge(caller, attempt)
                    await done(call.commit(caller.conn, attempt))
                    await done(call.commit(caller.conn, attempt))
                    await (caller.rollback() if attempt == 1 else caller.commit())
            assert await charged(database) == [2]
            async with client.idempotent(KEY) as call:
                assert call.result == 2


class TestCommitOnSome(CallerTests):
    kinds = SOME

    async def test_the_block_may_end_before_the_transaction(self, database: Database) -> None:
        """Nobody gets the key in between, not even when the lease is over; then all see what was committed."""
        async with client_of(database) as client, client_of(database) as other, database.caller() as caller:
            await charge(caller, 10)
            await caller.commit()
            await caller.begin()
            async with client.idempotent(KEY, ttl=ATTEMPT) as call:
                await caller.do("INSERT INTO charged VALUES (11)") if database.postgres else None
                await done(call.commit(caller.conn, "paid"))
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    async with other.idempotent(KEY, ttl=ATTEMPT) as call:
                        raise AssertionError("it was begun a second time")
            await caller.commit()
            async with other.idempotent(KEY, timeout=10) as call:
                assert call.result == "paid"

    async def test_a_second_commit_is_misuse_and_one_after_a_rollback_is_not(self, database: Database) -> None:
        async with client_of(database) as client, database.caller() as caller:
            async with client.idempotent(KEY) as call:
                await charge(caller, 10)
                await done(call.commit(caller.conn, "undone"))
                await caller.rollback()
                await charge(caller, 11)
                await done(call.commit(caller.conn, "first"))
                await caller.commit()
                await charge(caller, 12)
                with pytest.raises(Misuse, match="was said before"):
                    await done(call.commit(caller.conn, "second"))
                await caller.rollback()
                assert call.result == "first"
            assert await charged(database) == [11]

    async def test_a_connection_without_a_transaction_is_misuse(self, database: Database) -> None:
        async with client_of(database) as client, database.caller() as caller:
            if await lasts(caller):
                return
            async with client.idempotent(KEY) as call:
                with pytest.raises(Misuse, match="belongs into the transaction"):
                    await done(call.commit(caller.conn))
                assert not call._is_done()

    async def test_a_store_elsewhere_is_misuse(self, database: Database, tmp_path: Path) -> None:
        """In another file, in another kind of database, or in none."""
        urls = [f"sqlite:///{tmp_path}/locks/other.db", f"memory:{tmp_path.name}"]
        for url in urls:
            runtime = ThreadRuntime() if database.blocking else AsyncioRuntime()
            async with Client(open_store(url, "shop", runtime), runtime) as client, database.caller() as caller:
                with pytest.raises(Misuse, match=r"not committed in|share no commit|not in the database") as error:
                    async with client.idempotent(KEY) as call:
                        await caller.begin()
                        try:
                            await done(call.commit(caller.conn))
                        finally:
                            await caller.rollback()
                assert isinstance(error.value, NotSupported) == url.startswith("memory")
                async with client.idempotent(KEY) as call:
                    assert not call.replayed, "what was not committed is not done"


def test_what_is_no_connection_is_misuse() -> None:
    with dibs.connect("memory:test_call") as client, client.idempotent(KEY) as call:
        for conn in (None, "postgresql://", object()):
            with pytest.raises(Misuse, match="is no connection that dibs knows"):
                call.commit(conn)


def test_a_replay_has_nothing_to_do() -> None:
    with dibs.connect("memory:test_call 2") as client:
        with client.idempotent(KEY) as call:
            assert repr(call) == f"<Call {KEY!r} fence={call.fence} attempt=1>"
            assert call.lease.name == KEY
        with client.idempotent(KEY) as call:
            assert repr(call) == f"<Call {KEY!r} replayed>"
            for use in (lambda: call.lease, lambda: call.fence, lambda: call.done(1)):
                with pytest.raises(Misuse, match="done before"):
                    use()


async def freed(client: Client) -> None:
    """Wait until nobody holds the key."""
    while (await client.show(KEY)).holder is not None:
        await client._runtime.sleep(0.01)


async def lasts(caller: Any) -> bool:
    return await session_of(caller.conn).lasts()
