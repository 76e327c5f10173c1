"""What an administrator or a cleaner removes or changes under connected clients of the embedded store."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .crowd import Child, Crowd

Damage = Callable[[Path], None]


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    (tmp_path / "own").mkdir(mode=0o700)
    crowd = Crowd(tmp_path / "own")
    yield crowd
    crowd.end()


def deleted(*suffixes: str) -> Damage:
    def damage(path: Path) -> None:
        for suffix in suffixes:
            Path(f"{path}{suffix}").unlink()

    return damage


def sql(*statements: str) -> Damage:
    def damage(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return damage


def the_directory_is_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def the_directory_is_moved(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def another_database_takes_its_place(path: Path) -> None:
    deleted("-wal", "-shm")(path)
    sql("VACUUM")(path.with_name("other"))
    path.with_name("other").chmod(0o600)
    path.with_name("other").replace(path)


def swept(path: Path) -> None:
    for file in Path(f"{path}.d", "alive").iterdir():
        file.unlink()


def all_beside_it_is_deleted(path: Path) -> None:
    shutil.rmtree(f"{path}.d")


def renewed(child: Child, name: str, token: str, fence: int) -> str | None:
    answer: str | None = child.do(f"run(store.renew([Claim({name!r}, {token!r}, {fence}, 30.0)], 5.0))[0]")
    return answer


@pytest.mark.parametrize(
    "damage",
    [
        deleted("", "-wal", "-shm"),
        deleted("-wal", "-shm"),
        another_database_takes_its_place,
        the_directory_is_deleted,
        the_directory_is_moved,
        sql("DELETE FROM lease"),
        sql("DROP TABLE lease"),
        sql("DROP TABLE lease", "DROP TABLE waiter", "DROP TABLE share", "DROP TABLE record"),
    ],
)
def test_after_the_locks_were_removed_others_get_in_with_a_higher_fence_and_the_holder_is_told(
    crowd: Crowd, damage: Damage
) -> None:
    holder, other = crowd.child(), crowd.child()
    fence = holder.do("ask('x', 'holder')")
    assert other.do("ask('x', 'other')") == 0
    damage(crowd.path)
    late = crowd.child()
    second = late.do("ask('x', 'late')")
    assert second > fence
    assert renewed(holder, "x", "holder", fence) == "taken"
    assert renewed(late, "x", "late", second) is None
    for child in (holder, other):
        assert child.do("ask('x', 'again')") == 0
    assert holder.do("ask('y', 'holder')") > 0
    assert other.do("ask('y', 'other')") == late.do("ask('y', 'late')") == 0


@pytest.mark.parametrize(
    "damage", [deleted("-shm"), swept, all_beside_it_is_deleted], ids=["shared memory", "swept", "all beside it"]
)
def test_what_holds_no_lock_can_be_removed_and_nobody_gets_in_beside_the_holder(crowd: Crowd, damage: Damage) -> None:
    holder, other = crowd.child(), crowd.child()
    fence = holder.do("ask('x', 'holder')")
    assert other.do("ask('x', 'other')") == 0
    damage(crowd.path)
    assert crowd.child().do("ask('x', 'late')") == 0
    assert other.do("ask('x', 'other')") == 0
    assert renewed(holder, "x", "holder", fence) is None
    assert crowd.child().do("ask('x', 'later')") == 0
    assert holder.do("release('x', 'holder')") is None
    assert other.do("ask('x', 'other')") > fence


def test_one_whose_sign_of_life_was_swept_shows_a_new_one_when_it_renews(crowd: Crowd) -> None:
    holder = crowd.child()
    fence = holder.do("ask('x', 'holder')")
    swept(crowd.path)
    assert renewed(holder, "x", "holder", fence) is None
    assert holder.do("ask('y', 'holder')")
    holder.end()
    child = crowd.child()
    crowd.wait_until(lambda: child.do("ask('y', 'next')") != 0)
    assert child.do("ask('x', 'next')") == 0  # it was granted under the sign that is gone: its ttl ends it


def test_a_waiter_whose_sign_of_life_was_swept_is_served_all_the_same(crowd: Crowd) -> None:
    holder, waiter = crowd.child(), crowd.child()
    holder.do("ask('x', 'holder')")
    waiter.send("take('x', 'waiter')")
    crowd.wait_for_line(1)
    swept(crowd.path)
    assert holder.do("release('x', 'holder')") is None
    assert waiter.answer() > 0


def test_what_a_killed_process_held_is_free_at_once_also_when_its_file_was_deleted_by_a_sweep(crowd: Crowd) -> None:
    holder = crowd.child()
    holder.do("ask('x', 'holder')")
    holder.do("ask('s', 'part-1of5-holder')")
    holder.end()
    before = len(list(Path(f"{crowd.path}.d", "alive").iterdir()))
    late = crowd.child()
    late.do("ask('y', 'late')")
    assert len(list(Path(f"{crowd.path}.d", "alive").iterdir())) == before  # one came, and one was swept
    assert late.do("ask('x', 'late')") > 0
    assert late.do("ask('s', 'late')") > 0


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE lease SET ends = 'infinity' WHERE name = 'x'",
        "UPDATE lease SET fence = 'one' WHERE name = 'x'",
        "UPDATE lease SET since = 1.5 WHERE name = 'x'",
        "UPDATE lease SET pid = 'me', note = x'ff' WHERE name = 'x'",
    ],
)
def test_a_row_of_another_program_is_named_with_how_to_remove_it_and_harms_no_other_name(
    crowd: Crowd, change: str
) -> None:
    holder, other = crowd.child(), crowd.child()
    fence = holder.do("ask('x', 'holder')")
    other.do("ask('y', 'other')")
    sql(change)(crowd.path)
    said = other.do("refusal(lambda: ask('x', 'other'))")
    assert said.startswith("StoreUnavailable")
    assert "DELETE FROM lease WHERE name = 'x'" in said
    assert other.do("sorted(holder.name for holder in run(store.holders('', 5.0)))") == ["warm", "x", "y"]
    sql("DELETE FROM lease WHERE name = 'x'")(crowd.path)
    assert other.do("ask('x', 'other')") > fence
    assert renewed(holder, "x", "holder", fence) == "taken"
