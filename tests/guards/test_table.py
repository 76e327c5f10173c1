"""A guard in a table lets the newest grant through and nothing older, and leaves the caller's transaction as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import GuardMissing, Misuse, StaleFence
from dibs.guards import TableGuard
from guards.callers import SOME, Caller, CallerTests, Database, done

NAME = "account:42"


async def prepared(database: Database, guard: TableGuard, *names: str) -> None:
    async with database.caller() as caller:
        await caller.begin()
        await done(guard.create(caller.conn))
        for name in names or (NAME,):
            await done(guard.add(caller.conn, name))
        await caller.commit()


async def claim(database: Database, guard: TableGuard, fence: int, name: str = NAME) -> None:
    """In a transaction of its own."""
    async with database.caller() as caller:
        await caller.begin()
        try:
            await done(guard.claim(caller.conn, name, fence))
        finally:
            await caller.commit()


async def begun(caller: Caller) -> Any:
    await caller.begin()
    return caller.conn


class TestClaim(CallerTests):
    async def test_a_newer_fence_is_accepted_and_an_older_one_refused(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        await claim(database, guard, 5)
        await claim(database, guard, 5)  # the same grant may come again
        await claim(database, guard, 9)
        with pytest.raises(StaleFence) as stale:
            await claim(database, guard, 8)
        assert (stale.value.name, stale.value.fence, stale.value.current) == (NAME, 8, 9)

    async def test_fences_are_numbers_and_not_text(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        await claim(database, guard, 9)
        await claim(database, guard, 10)
        await claim(database, guard, 2**63 - 1)

    async def test_a_refusal_poisons_nothing(self, database: Database) -> None:
        """The caller's transaction goes on, with what it had done before."""
        guard = TableGuard()
        await prepared(database, guard)
        await database.do("CREATE TABLE note (text TEXT)")
        await claim(database, guard, 9)
        async with database.caller() as caller:
            conn = await begun(caller)
            await caller.do("INSERT INTO note VALUES ('before')")
            with pytest.raises(StaleFence):
                await done(guard.claim(conn, NAME, 8))
            await caller.do("INSERT INTO note VALUES ('after')")
            await caller.commit()
        assert await database.do("SELECT text FROM note ORDER BY text") == [("after",), ("before",)]

    async def test_a_claim_is_undone_with_the_transaction(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        async with database.caller() as caller:
            await done(guard.claim(await begun(caller), NAME, 9))
            await caller.rollback()
        await claim(database, guard, 8)

    async def test_a_fence_of_one_name_never_passes_for_another(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard, "a", "b")
        await claim(database, guard, 9, "a")
        await claim(database, guard, 5, "b")
        with pytest.raises(StaleFence, match="'a'"):
            await claim(database, guard, 5, "a")

    async def test_any_name_has_a_row_of_its_own(self, database: Database) -> None:
        guard, names = TableGuard(), ["a%00b", "a\0b", "a%b", "A%B", "%", "ü", "'; DROP TABLE dibs_guard; --", ":name"]
        await prepared(database, guard, *names)
        async with database.caller() as caller:
            conn = await begun(caller)
            for number, name in enumerate(names, 1):
                await done(guard.claim(conn, name, number))
            await caller.commit()
        assert await database.do("SELECT count(*), count(DISTINCT fence) FROM dibs_guard") == [(8, 8)]

    async def test_one_shot_accepts_one_claim_of_each_grant(self, database: Database) -> None:
        guard = TableGuard(one_shot=True)
        await prepared(database, guard)
        await claim(database, guard, 5)
        with pytest.raises(StaleFence, match="of the same grant"):
            await claim(database, guard, 5)
        await claim(database, guard, 6)

    async def test_a_lower_fence_of_a_higher_epoch_is_newer(self, database: Database) -> None:
        """As when the locks move from Redis, whose fences are microseconds, to etcd, whose fences are small."""
        old, new = TableGuard(), TableGuard(epoch=1)
        await prepared(database, old)
        await claim(database, old, 1_700_000_000_000_000)
        await claim(database, new, 12)
        with pytest.raises(StaleFence) as stale:
            await claim(database, old, 1_700_000_000_000_001)
        assert "epoch 1" in stale.value.__notes__[0]


class TestMissing(CallerTests):
    """Case 75: what was removed may have refused this fence, so nothing is accepted in its place."""

    kinds = SOME

    async def test_a_missing_row_is_an_error(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        with pytest.raises(GuardMissing, match="has no row for it"):
            await claim(database, guard, 5, "another")

    async def test_a_deleted_row_is_an_error_for_every_step(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        await claim(database, guard, 5)
        await database.do("DELETE FROM dibs_guard")
        async with database.caller() as caller:
            conn = await begun(caller)
            steps: list[Callable[[], object]] = [
                lambda: guard.claim(conn, NAME, 6),
                lambda: guard.check(conn, NAME, 6),
                lambda: guard.write(conn, NAME, 6, 1),
                lambda: guard.seal(conn, NAME, 6),
            ]
            for step in steps:
                with pytest.raises(GuardMissing):
                    await done(step())

    async def test_a_missing_table_is_an_error_that_says_what_to_do(self, database: Database) -> None:
        with pytest.raises(GuardMissing, match=r"no table nowhere; make it with create") as missing:
            await claim(database, TableGuard(table="nowhere"), 5)
        assert missing.value.__cause__ is not None

    async def test_rows_are_made_by_the_first_claim_where_that_is_asked_for(self, database: Database) -> None:
        guard = TableGuard(create_rows=True)
        await prepared(database, guard, "other")
        async with database.caller() as caller:
            conn = await begun(caller)
            await done(guard.check(conn, NAME, 4))
            await done(guard.claim(conn, NAME, 5))
            assert await done(guard.seal(conn, "sealed at once", 5))
            assert await done(guard.write(conn, "written at once", 5, 3))
            assert not await done(guard.write(conn, "written at once", 5, 3))
            with pytest.raises(StaleFence):
                await done(guard.claim(conn, NAME, 4))
            with pytest.raises(StaleFence):
                await done(guard.claim(conn, "sealed at once", 5))
            await caller.commit()


class TestWrite(CallerTests):
    kinds = SOME

    async def test_writes_of_one_grant_are_accepted_in_order_and_a_repeat_is_recognised(
        self, database: Database
    ) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        async with database.caller() as caller:
            conn = await begun(caller)
            await done(guard.claim(conn, NAME, 5))
            assert await done(guard.write(conn, NAME, 5, 1))
            assert await done(guard.write(conn, NAME, 5, 2))
            assert not await done(guard.write(conn, NAME, 5, 2))
            with pytest.raises(StaleFence, match="of the same grant"):  # a duplicate that was delayed
                await done(guard.write(conn, NAME, 5, 1))
            await done(guard.claim(conn, NAME, 5))  # shows the fence again, and forgets no seq
            assert not await done(guard.write(conn, NAME, 5, 2))
            await done(guard.claim(conn, NAME, 6))
            assert await done(guard.write(conn, NAME, 6, 1))
            with pytest.raises(StaleFence) as stale:
                await done(guard.write(conn, NAME, 5, 3))
            assert stale.value.current == 6
            await caller.commit()

    async def test_a_number_is_shown_only_in_the_transaction_of_its_write(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        async with database.caller() as caller:
            if not hasattr(caller.conn, "get_bind"):  # a session of SQLAlchemy begins one by itself
                with pytest.raises(Misuse, match="this connection is in none"):
                    await done(guard.write(caller.conn, NAME, 5, 1))

    async def test_another_write_with_the_same_number_is_not_taken_for_a_repeat(self, database: Database) -> None:
        """Else it would be left out, and nobody told."""
        guard = TableGuard()
        await prepared(database, guard)
        async with database.caller() as caller:
            conn = await begun(caller)
            assert await done(guard.write(conn, NAME, 5, 1, "debit 10"))
            assert not await done(guard.write(conn, NAME, 5, 1, "debit 10"))
            with pytest.raises(Misuse, match="was used for another write"):
                await done(guard.write(conn, NAME, 5, 1, "debit 20"))
            await caller.commit()

    async def test_a_sealed_grant_is_over_and_the_next_is_not(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        async with database.caller() as caller:
            conn = await begun(caller)
            await done(guard.claim(conn, NAME, 5))
            assert await done(guard.seal(conn, NAME, 5))
            assert not await done(guard.seal(conn, NAME, 5))
            steps: list[Callable[[], object]] = [
                lambda: guard.claim(conn, NAME, 5),
                lambda: guard.check(conn, NAME, 5),
                lambda: guard.write(conn, NAME, 5, 1),
            ]
            for step in steps:
                with pytest.raises(StaleFence):
                    await done(step())
            await done(guard.claim(conn, NAME, 6))
            assert await done(guard.write(conn, NAME, 6, 1))
            assert not await done(guard.seal(conn, NAME, 5))  # late: nothing of the next is touched
            await done(guard.check(conn, NAME, 6))
            await caller.commit()

    async def test_check_refuses_only_what_is_stale(self, database: Database) -> None:
        guard = TableGuard()
        await prepared(database, guard)
        await claim(database, guard, 5)
        async with database.caller() as caller:
            for begin in (False, True):
                conn = await begun(caller) if begin else caller.conn
                await done(guard.check(conn, NAME, 5))
                await done(guard.check(conn, NAME, 6))
                with pytest.raises(StaleFence):
                    await done(guard.check(conn, NAME, 4))
            await caller.commit()

    async def test_what_is_no_fence_is_refused_before_anything_is_sent(self, database: Database) -> None:
        """Case 7. There is no table: a statement would say so."""
        guard, wrong = TableGuard(table="nowhere"), list[Any]([True, 1.0, "5", None, 0, -1, 2**63])
        async with database.caller() as caller:
            steps: list[Callable[[Any], object]] = [
                lambda fence: guard.claim(caller.conn, NAME, fence),
                lambda fence: guard.check(caller.conn, NAME, fence),
                lambda fence: guard.seal(caller.conn, NAME, fence),
                lambda fence: guard.write(caller.conn, NAME, fence, 1),
            ]
            for step in steps:
                for fence in wrong:
                    with pytest.raises(Misuse, match="positive whole number below"):
                        await done(step(fence))

    async def test_what_is_no_seq_is_refused(self, database: Database) -> None:
        wrong: list[Any] = [True, 1.0, "5", None, 0, -1, 2**63 - 1]
        async with database.caller() as caller:
            for seq in wrong:
                with pytest.raises(Misuse, match="number of a write"):
                    await done(TableGuard().write(caller.conn, NAME, 5, seq))


@pytest.mark.parametrize("table", ["a b", "a;b", 'a"', "", "a.b.c", "é", "1a", None])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(Misuse, match="it is a name such as"):
        TableGuard(table=table)


@pytest.mark.parametrize("epoch", [True, -1, 1.5, "1", 2**31])
def test_what_is_no_epoch_is_refused(epoch: Any) -> None:
    with pytest.raises(Misuse, match="epoch"):
        TableGuard(epoch=epoch)


def test_what_is_no_connection_is_refused() -> None:
    with pytest.raises(Misuse, match=r"builtins\.str is no connection"):
        TableGuard().claim("postgresql://", NAME, 5)  # type: ignore[call-overload]
