"""The guard in memory follows the same rule as the others, from any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dibs
from dibs.errors import Misuse, StaleFence
from dibs.guards import MemoryGuard


def test_the_newest_grant_passes_and_nothing_older() -> None:
    guard = MemoryGuard()
    guard.claim("a", 5)
    guard.claim("a", 5)
    guard.claim("a", 6)
    guard.claim("b", 1)
    guard.check("a", 6)
    for step in (lambda: guard.claim("a", 5), lambda: guard.check("a", 5), lambda: guard.write("a", 5, 9)):
        with pytest.raises(StaleFence) as stale:
            step()
        assert stale.value.current == 6


def test_writes_of_a_grant_come_in_order_and_a_repeat_is_recognised() -> None:
    guard = MemoryGuard()
    assert guard.write("a", 5, 1, "x")
    assert not guard.write("a", 5, 1, "x")
    with pytest.raises(Misuse, match="another write"):
        guard.write("a", 5, 1, "y")
    assert guard.write("a", 5, 2)
    guard.claim("a", 5)
    with pytest.raises(StaleFence, match="same grant"):
        guard.write("a", 5, 1, "x")


def test_a_sealed_grant_is_over() -> None:
    guard = MemoryGuard()
    assert guard.seal("a", 5)
    assert not guard.seal("a", 5)
    with pytest.raises(StaleFence):
        guard.claim("a", 5)
    guard.claim("a", 6)


def test_one_shot_takes_one_write_of_each_grant() -> None:
    guard = MemoryGuard(one_shot=True)
    assert guard.write("a", 5, 1)
    assert not guard.write("a", 5, 1)
    with pytest.raises(StaleFence):
        guard.write("a", 5, 2)
    assert guard.write("a", 6, 1)


def test_an_epoch_goes_before_the_fence() -> None:
    guard, moved = MemoryGuard(), MemoryGuard(epoch=1)
    moved._marks = guard._marks
    guard.claim("a", 10**15)
    moved.claim("a", 3)
    with pytest.raises(StaleFence) as stale:
        guard.claim("a", 10**15 + 1)
    assert "epoch 1" in stale.value.__notes__[0]


@pytest.mark.parametrize("fence", [True, 1.0, "5", None, 0, -1, 2**63])
def test_what_is_no_fence_is_refused(fence: Any) -> None:
    guard = MemoryGuard()
    for step in (guard.claim, guard.check, guard.seal, lambda name, fence: guard.write(name, fence, 1)):
        with pytest.raises(Misuse):
            step("a", fence)


def test_threads_are_let_through_in_the_order_of_their_fences() -> None:
    guard, accepted = MemoryGuard(), list[int]()

    def claim(fence: int) -> None:
        try:
            guard.claim("a", fence)
        except StaleFence:
            return
        accepted.append(fence)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, range(1, 500)))
    assert max(accepted) == 499
    guard.check("a", 499)


def test_a_lock_claims_on_acquire_and_seals_on_release() -> None:
    guard = MemoryGuard()
    with dibs.connect("memory:guard") as client, client.lock("a").guarded(guard) as lease:
        assert guard.write("a", lease.fence, 1)
        with pytest.raises(StaleFence):
            guard.claim("a", lease.fence - 1)
    with pytest.raises(StaleFence, match="same grant"):
        guard.write("a", lease.fence, 2)
