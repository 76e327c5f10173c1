"""What stands for something that exists once is not copied or pickled; a description of a lock is the same lock."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs import aio
from dibs.guards import memory

Way = Callable[[Any], Any]
Connect = Callable[[str], Any]

WAYS: list[Way] = [copy.copy, copy.deepcopy, pickle.dumps]

STATELESS: dict[str, Callable[[Any], Any]] = {
    "client": lambda client: client,
    "once": lambda client: client.once("a", slot="monday"),
    "idempotent": lambda client: client.idempotent("a"),
    "election": lambda client: client.election("a"),
    "leading": lambda client: client.election("a").lead(),
    "leaders": lambda client: client.election("a").watch(),
    "guarded": lambda client: client.lock("a").guarded(memory.MemoryGuard()),
}

LOCKS: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a"),
    "semaphore": lambda client: client.semaphore("a", 3),
    "all": lambda client: client.all("a", "b"),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory:{tmp_path.name}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", STATELESS)
@pytest.mark.parametrize("connect", [dibs.connect, aio.connect])
def test_what_exists_once_is_not_copied(connect: Connect, kind: str, way: Way, url: str) -> None:
    with pytest.raises(dibs.Misuse, match=r"cannot be pickled or copied: (call|make|connect)"):
        way(STATELESS[kind](connect(url)))


def assert_not_copied(way: Way, *held: object) -> None:
    for each in held:
        with pytest.raises(dibs.Misuse, match="cannot be pickled or copied"):
            way(each)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_is_not_copied(way: Way, url: str) -> None:
    with dibs.connect(url) as client:
        with client.lock("a") as lease, client.all("b", "c") as leases, client.election("d").lead() as term:
            assert_not_copied(way, lease, lease.lost, leases, leases.lost, term, term.lost)
        with client.once("e", slot="monday") as ran, client.idempotent("f") as call:
            assert_not_copied(way, ran, call)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_held_is_not_copied_in_async_code(way: Way, url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as client:
            async with client.lock("a") as lease, client.all("b", "c") as leases, client.election("d").lead() as term:
                assert_not_copied(way, lease, lease.lost, leases, leases.lost, term, term.lost)
            async with client.once("e", slot="monday") as ran, client.idempotent("f") as call:
                assert_not_copied(way, ran, call)

    asyncio.run(main())


@pytest.mark.parametrize("kind", LOCKS)
def test_a_copy_of_a_lock_describes_the_same_lock(kind: str, url: str) -> None:
    with dibs.connect(url) as client:
        lock = LOCKS[kind](client)
        with copy.copy(lock), pytest.raises(dibs.Misuse, match="already"):
            client.lock("a").acquire(timeout=0)
        with lock:
            pass


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", LOCKS)
@pytest.mark.parametrize("connect", [dibs.connect, aio.connect])
def test_a_lock_takes_its_client_nowhere(connect: Connect, kind: str, way: Way, url: str) -> None:
    with pytest.raises(dibs.Misuse, match="connect one in each process"):
        way(LOCKS[kind](connect(url)))
