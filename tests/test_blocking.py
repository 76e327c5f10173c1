"""The blocking API in real threads: whoever shares what, and whatever is dropped, forgotten or left open."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

import dibs
from dibs import _blocking

T = TypeVar("T")

SOON = 10.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


@pytest.fixture(params=["memory", "sqlite"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dibs.Client]:
    url = f"memory:{tmp_path.name}" if request.param == "memory" else f"sqlite:///{tmp_path}/dibs.db"
    with dibs.connect(url) as made:
        yield made


def beside(work: Callable[[], T]) -> Future[T]:
    """Do *work* in a thread of its own."""
    future: Future[T] = Future()

    def main() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=main, daemon=True).start()
    return future


def until(truth: Callable[[], bool], within: float = SOON) -> None:
    end = time.monotonic() + within
    while not truth():
        assert time.monotonic() < end, "it has not become true"
        time.sleep(0.002)


def test_threads_that_share_a_lock_object_hold_it_one_after_another(client: dibs.Client) -> None:
    lock, inside, most, fences = client.lock("shared"), 0, 0, list[int]()

    def work() -> None:
        nonlocal inside, most
        for _ in range(10):
            with lock as lease:
                inside += 1
                most = max(most, inside)
                fences.append(lease.fence)
                inside -= 1

    for future in [beside(work) for _ in range(4)]:
        future.result(SOON)
    assert most == 1
    assert fences == sorted(set(fences))
    assert len(fences) == 40


def test_a_lease_can_be_handed_to_another_thread(client: dibs.Client) -> None:
    lease = client.lock("a").acquire()
    beside(lease.renew).result(SOON)
    beside(lease.check).result(SOON)
    beside(lease.release).result(SOON)
    assert client.holders() == []
    client.lock("a").acquire(timeout=0).release()


def test_a_thread_that_holds_a_lock_cannot_wait_for_it(client: dibs.Client) -> None:
    lease = client.lock("a").acquire()
    waiter = beside(lambda: client.lock("a").acquire(timeout=SOON))
    until(lambda: len(client.show("a").waiting) == 1)
    with pytest.raises(dibs.Misuse, match="already holds 'a'"):
        client.lock("a").acquire()
    with pytest.raises(dibs.Misuse, match="already holds 'a'"):
        client.lock("a").try_acquire()
    lease.release()
    waiter.result(SOON).release()


def test_a_new_thread_is_not_taken_for_an_old_one_with_its_number(client: dibs.Client) -> None:
    """Thread identifiers are used again; the lease of a thread that has ended is nobody's."""
    lease = beside(client.lock("a").acquire).result(SOON)
    for _ in range(20):
        assert beside(client.lock("a").try_acquire).result(SOON) is None
    assert client.lock("a").try_acquire() is None
    lease.release()


def test_a_loss_is_seen_by_every_thread_and_raised_into_none(client: dibs.Client) -> None:
    lease = client.lock("a", ttl=0.3).acquire()
    waiters = [beside(lambda: lease.lost.wait(SOON)) for _ in range(3)]
    assert client.evict("a", fence=lease.fence)
    assert all(waiter.result(SOON) for waiter in waiters)
    assert lease.lost
    assert lease.lost_reason is dibs.LossReason.EVICTED
    with pytest.raises(dibs.LeaseLost):
        lease.check()


def test_a_block_that_was_lost_runs_to_its_end_and_then_says_so(client: dibs.Client) -> None:
    ended = False
    with pytest.raises(dibs.LeaseLost), client.lock("a", ttl=0.3) as lease:
        client.evict("a", fence=lease.fence)
        assert lease.lost.wait(SOON)
        ended = True
    assert ended


def test_a_thousand_leases_cost_one_thread_and_no_file(client: dibs.Client) -> None:
    client.lock("warm").acquire().release()
    gc.collect()  # what another test has left may have files open
    threads, files = threading.active_count(), open_files()
    leases = [client.lock(f"lock {n}").acquire(timeout=0) for n in range(1000)]
    assert threading.active_count() <= threads + 1
    assert open_files() <= files
    for lease in leases:
        lease.release()
    assert client.holders() == []


def test_closing_ends_the_keeper_and_the_files(tmp_path: Path) -> None:
    gc.collect()
    threads, files = threading.active_count(), open_files()
    for _ in range(3):
        with dibs.connect(f"sqlite:///{tmp_path}/dibs.db") as client:
            leases = [client.lock(f"lock {n}").acquire() for n in range(5)]
            assert threading.active_count() == threads + 1
        assert not any(lease.lost for lease in leases)
        until(lambda: threading.active_count() == threads)
    assert open_files() <= files


def test_a_client_that_is_dropped_ends_its_keeper(url: str) -> None:
    gc.collect()
    threads = threading.active_count()
    client = dibs.connect(url)
    lease = client.lock("a", ttl=0.2).acquire()
    assert threading.active_count() == threads + 1
    gone = weakref.ref(client._core)
    del client, lease
    gc.collect()
    until(lambda: threading.active_count() == threads)
    gc.collect()
    assert gone() is None


def test_a_lease_that_is_dropped_is_neither_renewed_nor_released(client: dibs.Client) -> None:
    gc.collect()  # before: it may take longer than the ttl
    client.lock("a", ttl=1).acquire()
    assert [holder.name for holder in client.holders()] == ["a"]
    client.lock("a").acquire(timeout=SOON).release()


def test_a_block_of_a_dropped_lock_is_still_released(client: dibs.Client) -> None:
    with client.lock("a"):
        gc.collect()
        assert [holder.name for holder in client.holders()] == ["a"]
    assert client.holders() == []


def test_a_generator_that_is_dropped_in_a_block_frees_the_lock(client: dibs.Client) -> None:
    def under_lock() -> Iterator[int]:
        with client.lock("a"):
            yield 1

    rows = under_lock()
    assert next(rows) == 1
    assert client.lock("b").try_acquire() is not None
    del rows
    gc.collect()
    until(lambda: "a" not in [holder.name for holder in client.holders()])


def test_the_default_client_is_one_for_the_process(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("DIBS_URL", url)
    _blocking._default_client.cache_clear()
    try:
        with dibs.lock("nightly") as lease:
            assert lease.name == "nightly"
            with pytest.raises(dibs.Misuse, match="already holds"):
                dibs.lock("nightly").acquire()

        @dibs.locked("report:{day}")
        def report(day: int) -> list[str]:
            return [holder.name for holder in dibs.connect(url).holders()]

        assert report(1) == ["report:1"]
    finally:
        _blocking._default_client().close()
        _blocking._default_client.cache_clear()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def test_what_lives_in_a_process_says_why_it_cannot_be_pickled(client: dibs.Client) -> None:
    lock = client.lock("a")
    with lock as lease:
        for thing, why in (
            (client, "connect one in each"),
            (lock, "connect one in each"),
            (lease, "hand the lease over"),
        ):
            with pytest.raises(dibs.Misuse, match=why):
                pickle.dumps(thing)
