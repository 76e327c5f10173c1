"""A sign of life is there exactly as long as its owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.ports.liveness import Liveness


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Liveness]:
    mine = Liveness(str(tmp_path))
    yield mine
    mine.end()


def test_others_see_that_it_lives_until_it_ends(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    assert mine.alive(other.process)
    assert mine.alive(mine.process)
    other.end()
    assert not mine.alive(other.process)


def test_a_name_that_nobody_has_is_dead(mine: Liveness) -> None:
    assert not mine.alive("0123456789abcdef")


def test_opening_and_closing_its_file_does_not_end_it(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    (tmp_path / other.process).read_bytes()
    assert mine.alive(other.process)
    other.end()


def test_two_who_look_at_once_both_see_that_it_is_dead(mine: Liveness, tmp_path: Path) -> None:
    (tmp_path / "dead").touch()
    with open(tmp_path / "dead") as another_look:
        fcntl.flock(another_look, fcntl.LOCK_SH)
        assert not mine.alive("dead")


def test_the_descriptor_is_not_given_to_programs_that_are_started(mine: Liveness) -> None:
    assert not os.get_inheritable(mine.fd)


def test_a_copy_that_is_closed_as_in_a_forked_child_does_not_end_it(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    os.close(os.dup(other.fd))
    assert mine.alive(other.process)
    other.end()


def test_a_copy_that_is_kept_keeps_it_alive_when_its_owner_ends(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    copy = os.dup(other.fd)
    other.end()
    assert mine.alive(other.process)
    os.close(copy)
    assert not mine.alive(other.process)


def test_a_link_in_its_place_is_not_followed(mine: Liveness, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert mine.alive("link")  # not known, so not declared dead


def test_the_sweep_deletes_the_dead_and_names_the_living(mine: Liveness, tmp_path: Path) -> None:
    other = Liveness(str(tmp_path))
    (tmp_path / "dead").touch()
    (tmp_path / "half.new").touch()
    assert mine.sweep() == {mine.process, other.process}
    assert {path.name for path in tmp_path.iterdir()} == {mine.process, other.process}
    other.end()
