"""A guard of files: the newest version wins, and what races a claim is either carried over or refused, never both."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.errors import Misuse, StaleFence
from dibs.guards import FileGuard

NAME = "report"


@pytest.fixture
def guard(tmp_path: Path) -> FileGuard:
    return FileGuard(tmp_path / "data", NAME)


def test_readers_take_the_newest_version(guard: FileGuard) -> None:
    assert guard.read() is None
    assert guard.write(NAME, 9, 1, b"nine, one")
    assert guard.write(NAME, 9, 2, b"nine, two")
    assert guard.read() == b"nine, two"
    assert guard.write(NAME, 10, 1, b"ten, one")  # as numbers: as text, 9 comes after 10
    assert guard.read() == b"ten, one"


def test_an_older_fence_is_refused_after_a_claim(guard: FileGuard) -> None:
    guard.write(NAME, 5, 1, b"old")
    guard.claim(NAME, 6)
    assert guard.read() == b"old"
    with pytest.raises(StaleFence) as stale:
        guard.write(NAME, 5, 2, b"late")
    assert stale.value.current == 6
    assert guard.read() == b"old"
    for step in (guard.claim, guard.check):
        with pytest.raises(StaleFence):
            step(NAME, 5)
    guard.claim(NAME, 6)
    assert guard.write(NAME, 6, 1, b"new")
    assert not guard.seal(NAME, 5)


def test_a_repeat_is_recognised_and_another_write_with_its_number_is_not(guard: FileGuard) -> None:
    assert guard.write(NAME, 5, 1, b"first")
    assert not guard.write(NAME, 5, 1, b"first")
    with pytest.raises(Misuse, match="another write"):
        guard.write(NAME, 5, 1, b"other")
    assert guard.write(NAME, 5, 2, b"second")
    with pytest.raises(StaleFence, match="same grant"):
        guard.write(NAME, 5, 1, b"first")


def test_a_sealed_grant_writes_no_more(guard: FileGuard) -> None:
    guard.write(NAME, 5, 1, b"last")
    assert guard.seal(NAME, 5)
    assert not guard.seal(NAME, 5)
    with pytest.raises(StaleFence):
        guard.write(NAME, 5, 2, b"late")
    assert guard.read() == b"last"
    guard.claim(NAME, 6)
    assert guard.read() == b"last"


def test_nothing_and_an_empty_version_are_told_apart(guard: FileGuard) -> None:
    guard.claim(NAME, 5)
    assert guard.read() is None
    guard.claim(NAME, 6)
    guard.claim(NAME, 7)
    guard.claim(NAME, 8)
    guard.prune()
    assert guard.read() is None
    guard.write(NAME, 8, 1, b"")
    assert guard.read() == b""
    guard.claim(NAME, 9)
    assert guard.read() == b""


def test_pruning_leaves_what_is_read(guard: FileGuard, tmp_path: Path) -> None:
    for fence in (5, 6, 7):
        guard.claim(NAME, fence)
        guard.write(NAME, fence, 1, b"%d" % fence)
    guard.prune()
    assert guard.read() == b"7"
    assert {name.split(".")[1] for name in os.listdir(tmp_path)} == {"6", "7"}


def test_other_files_of_the_folder_do_not_count(guard: FileGuard, tmp_path: Path) -> None:
    for name in ("data", "data.9", "data.09.1", "data.9.x", "xdata.9.1", "data.9.1.bak", "data.-9.1"):
        (tmp_path / name).write_text("other")
    assert guard.read() is None


def test_a_fence_of_another_lock_is_refused(guard: FileGuard) -> None:
    for step in (
        lambda: guard.claim("other", 5),
        lambda: guard.check("other", 5),
        lambda: guard.write("other", 5, 1, b""),
        lambda: guard.seal("other", 5),
    ):
        with pytest.raises(Misuse, match="is for the lock 'report'"):
            step()


@pytest.mark.parametrize("fence", [True, 1.0, "5", None, 0, -1, 2**63])
def test_what_is_no_fence_is_refused(guard: FileGuard, fence: Any) -> None:
    for step in (lambda: guard.claim(NAME, fence), lambda: guard.write(NAME, fence, 1, b"")):
        with pytest.raises(Misuse, match="positive whole number"):
            step()


class Between:
    """Does something once, just before the link with a certain name is made, or just after."""

    def __init__(self, ending: str, do: Callable[[], object], *, after: bool) -> None:
        self._ending, self._do, self._after, self._link = ending, do, after, os.link
        self.done = False

    def link(self, source: Any, target: Any) -> None:
        now = str(target).endswith(self._ending) and not self.done
        self.done = self.done or now
        if now and not self._after:
            self._do()
        self._link(source, target)
        if now and self._after:
            self._do()


@pytest.mark.parametrize("had_a_version", [False, True])
def test_a_write_whose_link_comes_after_the_claim_is_refused(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch, had_a_version: bool
) -> None:
    """It stood still between its check and its link."""
    before = b"first" if had_a_version else None
    if before:
        guard.write(NAME, 5, 1, before)
    between = Between("data.5.2", lambda: guard.claim(NAME, 6), after=False)
    monkeypatch.setattr(os, "link", between.link)
    with pytest.raises(StaleFence):
        guard.write(NAME, 5, 2, b"late")
    assert between.done
    assert guard.read() == before


def test_a_write_whose_link_comes_before_the_claim_is_carried_over(
    guard: FileGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between its link and its last look; the new holder has read it, so it counts as written."""
    between = Between("data.5.1", lambda: guard.claim(NAME, 6), after=True)
    monkeypatch.setattr(os, "link", between.link)
    assert guard.write(NAME, 5, 1, b"in time")
    assert between.done
    assert guard.read() == b"in time"


def test_a_write_that_is_taken_back_while_the_claim_looks_is_not_carried_over(
    guard: FileGuard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim had found it as the newest, and finds it gone when it makes its link."""
    guard.write(NAME, 5, 1, b"first")
    guard.write(NAME, 5, 2, b"taken back")
    between = Between("data.6.0", (tmp_path / "data.5.2").unlink, after=False)
    monkeypatch.setattr(os, "link", between.link)
    guard.claim(NAME, 6)
    assert between.done
    assert guard.read() == b"first"


def test_a_reader_finishes_the_claim_of_a_holder_that_stands_still(guard: FileGuard, tmp_path: Path) -> None:
    guard.write(NAME, 5, 1, b"old")
    (tmp_path / "data.6.claim").touch()
    assert guard.read() == b"old"
    assert (tmp_path / "data.6.0").exists()


def test_holders_that_all_believe_they_hold_the_lock_lose_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock at all, only fences: whatever was accepted is in the number, and what was refused is not."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    fences, accepted = itertools.count(1), list[int]()

    def add() -> None:
        guard = FileGuard(tmp_path / "data", NAME)
        for fence in itertools.islice(fences, 60):
            with suppress(StaleFence):
                guard.claim(NAME, fence)
                guard.write(NAME, fence, 1, b"%d" % (int(guard.read() or b"0") + 1))
                accepted.append(fence)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert int(FileGuard(tmp_path / "data", NAME).read() or b"0") == len(accepted) > 0


def test_a_lock_claims_on_acquire(guard: FileGuard) -> None:
    with dibs.connect("memory:files-guard") as client, client.lock(NAME).guarded(guard) as lease:
        assert guard.write(NAME, lease.fence, 1, b"ours")
    with pytest.raises(StaleFence, match="same grant"):
        guard.write(NAME, lease.fence, 2, b"late")
    assert guard.read() == b"ours"
