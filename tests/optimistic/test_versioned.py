"""A versioned update is done only if nobody wrote since the row was read, and tells a change from a deletion."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import Changed, Deleted, Misuse
from dibs.optimistic import Versioned
from guards.callers import SOME, CallerTests, Database, done

KEY = {"id": 42}


async def prepared(database: Database) -> None:
    await database.do(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, version BIGINT NOT NULL DEFAULT 0)"
    )
    await database.do("INSERT INTO account (id, balance) VALUES (42, 100), (43, 100)")


class TestVersioned(CallerTests):
    kinds = SOME

    async def test_the_version_that_was_read_is_written_and_raised(self, database: Database) -> None:
        await prepared(database)
        async with database.caller() as caller:
            await caller.begin()
            assert await done(Versioned("account").update(caller.conn, KEY, 0, {"balance": 90})) == 1
            assert await done(Versioned("account").update(caller.conn, KEY, 1, {"balance": 80})) == 2
            await caller.commit()
        assert await database.do("SELECT balance, version FROM account ORDER BY id") == [(80, 2), (100, 0)]

    async def test_another_version_is_told_as_a_change_and_poisons_nothing(self, database: Database) -> None:
        await prepared(database)
        async with database.caller() as caller:
            await caller.begin()
            await done(Versioned("account").update(caller.conn, KEY, 0, {"balance": 90}))
            with pytest.raises(Changed) as changed:
                await done(Versioned("account").update(caller.conn, KEY, 0, {"balance": 70}))
            await done(Versioned("account").update(caller.conn, KEY, changed.value.current, {"balance": 80}))
            await caller.commit()
        assert (changed.value.row, changed.value.version, changed.value.current) == ("account id=42", 0, 1)
        assert await database.do("SELECT balance FROM account WHERE id = 42") == [(80,)]

    async def test_a_row_changed_and_changed_back_is_a_change(self, database: Database) -> None:
        await prepared(database)
        async with database.caller() as caller:
            await caller.begin()
            for version, balance in enumerate((90, 100)):
                await done(Versioned("account").update(caller.conn, KEY, version, {"balance": balance}))
            with pytest.raises(Changed):
                await done(Versioned("account").update(caller.conn, KEY, 0, {"balance": 80}))
            await caller.commit()

    async def test_a_deleted_row_is_told_as_deleted(self, database: Database) -> None:
        await prepared(database)
        await database.do("DELETE FROM account WHERE id = 42")
        async with database.caller() as caller:
            await caller.begin()
            with pytest.raises(Deleted, match="account id=42 is not there any more"):
                await done(Versioned("account").update(caller.conn, KEY, 0, {"balance": 90}))
            await caller.commit()

    async def test_what_cannot_be_right_is_refused(self, database: Database) -> None:
        await prepared(database)
        account, wrong = Versioned("account"), list[Any]([True, 1.0, "5", None, 2**63])
        async with database.caller() as caller:
            for version in wrong:
                with pytest.raises(Misuse, match="version"):
                    await done(account.update(caller.conn, KEY, version, {"balance": 1}))
            for key in ({}, {"id": None}, {"id = 42; --": 1}):
                with pytest.raises(Misuse):
                    await done(account.update(caller.conn, key, 0, {"balance": 1}))
            with pytest.raises(Misuse, match="column"):
                await done(account.update(caller.conn, KEY, 0, {"balance = 1; --": 1}))

    async def test_a_key_of_several_rows_is_refused(self, database: Database) -> None:
        await prepared(database)
        async with database.caller() as caller:
            await caller.begin()
            with pytest.raises(Misuse, match="has 2 rows"):
                await done(Versioned("account").update(caller.conn, {"balance": 100}, 0, {"balance": 1}))
            await caller.rollback()
