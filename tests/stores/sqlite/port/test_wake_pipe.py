"""A bell wakes one waiter, and cannot be rung when nobody would hear it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.runtime import run
from dibs.runtime.threads import ThreadRuntime
from dibs.stores.sqlite.port.wake_pipe import Bell, Bells


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[Bells]:
    bells = Bells(str(tmp_path), "me")
    yield bells
    bells.end()
    assert list(tmp_path.glob("me.*")) == []


def give(bells: Bells, token: str) -> tuple[str, Bell]:
    name, bell = bells.give(token), bells.of(token)
    assert name is not None
    assert bell is not None
    return name, bell


def rung(bell: Bell) -> bool:
    return run(ThreadRuntime().readable(bell.fd, 0))


def test_it_rings_until_it_is_hushed(bells: Bells) -> None:
    name, bell = give(bells, "t")
    assert not rung(bell)
    assert bells.ring(name)
    assert rung(bell)
    bell.hush()
    bell.hush()
    assert not rung(bell)


def test_only_the_one_that_is_rung_rings(bells: Bells) -> None:
    name, _ = give(bells, "a")
    _, other = give(bells, "b")
    bells.ring(name)
    assert not rung(other)


def test_a_bell_of_nobody_cannot_be_rung_and_is_removed(bells: Bells, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dead.1", 0o600)
    assert not bells.ring("dead.1")
    assert not (tmp_path / "dead.1").exists()
    assert not bells.ring("dead.1")


def test_a_bell_can_be_rung_any_number_of_times_without_blocking(bells: Bells) -> None:
    name, _ = give(bells, "t")
    for _ in range(70_000 // 64):
        assert bells.ring(name)


def test_a_bell_is_used_again_and_is_quiet_then(bells: Bells) -> None:
    name, _ = give(bells, "a")
    bells.ring(name)
    bells.take_back("a")
    assert "a" not in bells
    again, bell = give(bells, "b")
    assert again == name
    assert not rung(bell)


def test_an_ask_keeps_its_bell(bells: Bells) -> None:
    assert bells.give("t") == bells.give("t")


def test_who_gets_no_descriptor_waits_without_a_bell(bells: Bells, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    assert bells.give("t") is None
    assert bells.of("t") is None


def test_the_sweep_deletes_the_bells_of_the_dead(bells: Bells, tmp_path: Path) -> None:
    name, _ = give(bells, "t")
    os.mkfifo(tmp_path / "dead.7")
    os.mkfifo(tmp_path / "lives.1")
    bells.sweep({"me", "lives"})
    assert {path.name for path in tmp_path.iterdir()} == {name, "lives.1"}


def test_who_listens_when_it_ends_is_woken_and_reads_nothing_of_others(bells: Bells, tmp_path: Path) -> None:
    _, bell = give(bells, "t")
    bells.end()
    (tmp_path / "other").write_text("of somebody else", encoding="utf-8")
    with (tmp_path / "other").open(encoding="utf-8") as other:  # it gets the number of whatever was closed just now
        assert rung(bell)
        bell.hush()
        assert other.read() == "of somebody else"


def test_it_is_closed_when_nobody_listens_any_more(bells: Bells) -> None:
    _, bell = give(bells, "t")
    number = bell.fd
    bells.end()
    assert os.fstat(number)
    del bell
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
