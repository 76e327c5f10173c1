"""A sign of life is there exactly as long as its owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.stores.sqlite.port.liveness import Liveness


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Liveness]:
    mine = Liveness(str(tmp_path))
    yield mine
    mine.end(leave_proof=False)


def test_others_see_that_it_lives_until_it_ends(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    assert mine.alive(other.process)
    assert mine.alive(mine.process)
    other.end(leave_proof=True)
    assert not mine.alive(other.process)
    assert mine.dead(other.process)


def test_a_missing_file_proves_neither_life_nor_death(mine: Liveness) -> None:
    assert not mine.alive("0123456789abcdef")
    assert not mine.dead("0123456789abcdef")


def test_a_file_that_need_not_prove_anything_goes_with_its_owner(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    other.end(leave_proof=False)
    assert {path.name for path in tmp_path.iterdir()} == {mine.process}


def test_one_whose_file_was_deleted_knows_it(mine: Liveness, tmp_path: Path) -> None:
    assert mine.shown()
    (tmp_path / mine.process).unlink()
    assert not mine.shown()


def test_its_file_looks_new_to_who_deletes_what_is_old(mine: Liveness, tmp_path: Path) -> None:
    os.utime(tmp_path / mine.process, (0, 0))
    assert mine.shown()
    assert (tmp_path / mine.process).stat().st_mtime > 0


def test_opening_and_closing_its_file_does_not_end_it(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    (tmp_path / other.process).read_bytes()
    assert mine.alive(other.process)
    other.end(leave_proof=False)


def test_two_who_look_at_once_both_see_that_it_is_dead(mine: Liveness, tmp_path: Path) -> None:
    (tmp_path / "dead").touch()
    with open(tmp_path / "dead") as another_look:
        fcntl.flock(another_look, fcntl.LOCK_SH)
        assert mine.dead("dead")


def test_the_descriptor_is_not_given_to_programs_that_are_started(mine: Liveness) -> None:
    assert not os.get_inheritable(mine.fd)


def test_a_copy_that_is_closed_as_in_a_forked_child_does_not_end_it(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    os.close(os.dup(other.fd))
    assert mine.alive(other.process)
    other.end(leave_proof=False)


def test_a_copy_that_is_kept_keeps_it_alive_when_its_owner_ends(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    copy = os.dup(other.fd)
    other.end(leave_proof=False)
    assert mine.alive(other.process)
    os.close(copy)
    assert mine.dead(other.process)


def test_a_link_in_its_place_is_not_followed(mine: Liveness, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert not mine.dead("link")  # not known, so not declared dead


def test_the_census_tells_the_living_from_the_dead_whose_files_are_deleted_then(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    (tmp_path / "dead").touch()
    (tmp_path / "half.new").touch()
    living, dead = mine.census()
    assert (living, dead) == ({mine.process, other.process}, {"dead", "half.new"})
    mine.forget(dead)
    assert {path.name for path in tmp_path.iterdir()} == {mine.process, other.process}
    other.end(leave_proof=False)
