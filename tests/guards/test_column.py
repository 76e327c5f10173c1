"""A guard in a column of the data compares and writes in one statement, on the row that the lock's name stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import GuardMissing, Misuse, StaleFence
from dibs.guards import ColumnGuard
from guards.callers import SOME, Caller, CallerTests, Database, done

NAME = "account:42"


def row(name: str) -> dict[str, object]:
    return {"id": int(name.removeprefix("account:"))}


async def prepared(database: Database) -> None:
    await database.do("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, fence BIGINT DEFAULT 0)")
    await database.do("INSERT INTO account (id, balance) VALUES (42, 100), (43, 100)")


async def begun(caller: Caller) -> Any:
    await caller.begin()
    return caller.conn


class TestColumn(CallerTests):
    kinds = SOME

    async def test_a_stale_write_is_refused_and_a_newer_one_is_done(self, database: Database) -> None:
        guard = ColumnGuard("account", row)
        await prepared(database)
        async with database.caller() as caller:
            conn = await begun(caller)
            await done(guard.claim(conn, NAME, 5))
            await done(guard.write(conn, NAME, 5, {"balance": 90}))
            await done(guard.write(conn, NAME, 5, {"balance": 80}))
            await done(guard.claim(conn, NAME, 6))
            with pytest.raises(StaleFence) as stale:
                await done(guard.write(conn, NAME, 5, {"balance": 70}))
            assert stale.value.current == 6
            with pytest.raises(StaleFence):
                await done(guard.check(conn, NAME, 5))
            await done(guard.check(conn, NAME, 6))
            await done(guard.claim(conn, "account:43", 5))
            await caller.commit()
        assert await database.do("SELECT balance, fence FROM account ORDER BY id") == [(80, 6), (100, 5)]

    async def test_a_sealed_grant_is_over_and_the_very_next_fence_is_not(self, database: Database) -> None:
        guard = ColumnGuard("account", row)
        await prepared(database)
        async with database.caller() as caller:
            conn = await begun(caller)
            await done(guard.claim(conn, NAME, 5))
            assert await done(guard.seal(conn, NAME, 5))
            assert not await done(guard.seal(conn, NAME, 5))
            with pytest.raises(StaleFence):
                await done(guard.claim(conn, NAME, 5))
            await done(guard.claim(conn, NAME, 6))
            await caller.commit()

    async def test_one_shot_writes_once_for_each_grant(self, database: Database) -> None:
        guard = ColumnGuard("account", row, one_shot=True)
        await prepared(database)
        async with database.caller() as caller:
            conn = await begun(caller)
            await done(guard.write(conn, NAME, 5, {"balance": 90}))
            assert not await done(guard.seal(conn, NAME, 5))
            with pytest.raises(StaleFence, match="same grant"):
                await done(guard.write(conn, NAME, 5, {"balance": 80}))
            await done(guard.write(conn, NAME, 6, {"balance": 80}))
            await caller.commit()

    @pytest.mark.parametrize("spoil", ["DELETE FROM account", "UPDATE account SET fence = NULL", "DROP TABLE account"])
    async def test_what_is_not_there_is_an_error_and_no_yes(self, database: Database, spoil: str) -> None:
        """Case 75."""
        guard = ColumnGuard("account", row)
        await prepared(database)
        await database.do(spoil)
        for step in (guard.claim, guard.check):
            async with database.caller() as caller:
                with pytest.raises(GuardMissing):
                    await done(step(await begun(caller), NAME, 5))
                await caller.rollback()

    async def test_what_cannot_be_right_is_refused_before_anything_is_sent(self, database: Database) -> None:
        guard, keyless, wrong = ColumnGuard("account", row), ColumnGuard("account", lambda name: {}), list[Any]()
        wrong += [True, 1.0, "5", None, 0, -1, 2**63]
        async with database.caller() as caller:
            steps: list[Callable[[Any], object]] = [
                lambda fence: guard.claim(caller.conn, NAME, fence),
                lambda fence: guard.check(caller.conn, NAME, fence),
                lambda fence: guard.seal(caller.conn, NAME, fence),
                lambda fence: guard.write(caller.conn, NAME, fence, {"balance": 1}),
            ]
            for step in steps:
                for fence in wrong:
                    with pytest.raises(Misuse, match="positive whole number"):
                        await done(step(fence))
            with pytest.raises(Misuse, match="no values"):
                await done(guard.write(caller.conn, NAME, 5, {}))
            with pytest.raises(Misuse, match="column='balance = 1; --'"):
                await done(guard.write(caller.conn, NAME, 5, {"balance = 1; --": 1}))
            with pytest.raises(Misuse, match="key of no row"):
                await done(keyless.claim(caller.conn, NAME, 5))
