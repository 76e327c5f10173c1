"""Other libraries on the key of our lock: redis-py's Lock, node-redlock, and ``SET NX PX`` as scripts do it.

Each runs in a process of its own and is what its users install. We are told their key by ``?key=`` in the URL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

import dibs
from servers.process import until
from servers.redis import RedisServer
from tempo import took

from .party import KINDS, Party

KEY = "jobs:{name}:lock"

Start = Callable[[str], Party]


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return f"{redis_server.url}?key={quote(KEY)}"


@pytest.fixture
def client(url: str) -> Iterator[dibs.Client]:
    with dibs.connect(url) as client:
        yield client


@pytest.fixture
def lock(client: dibs.Client) -> dibs.Lock:
    return client.lock("nightly", ttl=30, timeout=10)


@pytest.fixture
def start(redis_server: RedisServer) -> Iterator[Start]:
    """Starts processes of other libraries on that key."""
    with ExitStack() as stack:

        def start(kind: str) -> Party:
            party = Party(kind, redis_server.port, KEY.format(name="nightly"))
            stack.callback(party.clean_up)
            return party

        yield start


@pytest.fixture(params=KINDS)
def other(request: pytest.FixtureRequest, start: Start) -> Party:
    """One of each kind."""
    return start(request.param)


def test_theirs_keeps_us_out_until_they_give_it_back(lock: dibs.Lock, other: Party) -> None:
    """Who has it we cannot know, and say so."""
    assert other.take()
    with pytest.raises(dibs.NotAcquired) as refused:
        lock.acquire(timeout=0)
    assert refused.value.holder is not None
    assert "another program" in refused.value.holder.note
    assert other.free()
    lock.acquire(timeout=0).release()
    other.end()


def test_ours_keeps_them_out_until_we_give_it_back(lock: dibs.Lock, other: Party) -> None:
    """They see a key that is set."""
    lease = lock.acquire(timeout=0)
    assert not other.take()
    lease.renew()
    assert not other.take()
    lease.release()
    assert other.take()
    other.end()


def test_our_waiter_notices_that_they_gave_it_back(client: dibs.Client, lock: dibs.Lock, other: Party) -> None:
    """They hint at nothing, so it looks by itself, long before the end of their ttl."""
    assert other.take(30)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(lock.acquire)
        until(lambda: bool(client.show("nightly").waiting), "our ticket is in line")
        assert other.free()
        with took(1):
            waiter.result().release()
    other.end()


def test_their_ttl_ends_for_us_and_whoever_waits_has_it(lock: dibs.Lock, other: Party) -> None:
    """They hint at nothing, so we come back when their ttl is over; and they know that it is not theirs any more."""
    assert other.take(0.3)
    with took(2):
        lease = lock.acquire()
    assert not other.extend(30)
    assert not other.free()
    lease.renew()
    lease.release()
    other.end()


def test_what_they_extend_keeps_us_out_for_longer(lock: dibs.Lock, other: Party) -> None:
    """They set the key anew, or its ttl."""
    assert other.take(0.5)
    assert other.extend(30)
    with pytest.raises(dibs.NotAcquired):
        lock.acquire(timeout=0.7)
    assert other.free()
    lock.acquire(timeout=0).release()
    other.end()


def test_our_end_is_theirs_too(url: str, other: Party, redis_server: RedisServer) -> None:
    """Whoever dies with our lock frees it for them after the ttl; and we, late, take nothing away from them."""
    with dibs.connect(url) as client:
        lease = client.lock("nightly", ttl=30).acquire(timeout=0)
        redis_server.command("PEXPIRE", KEY.format(name="nightly"), 1)  # as if nobody had renewed it for so long
        deadline = time.monotonic() + 5
        while not other.take():
            assert time.monotonic() < deadline
        with pytest.raises(dibs.LeaseLost):
            lease.renew()
    assert other.free()
    other.end()


def test_a_mixed_crowd_loses_no_update(lock: dibs.Lock, start: Start, tmp_path: Path) -> None:
    """One process of each kind counts in a plain file, and so do we."""
    path, rounds = tmp_path / "number", 40
    path.write_text("0", encoding="ascii")
    others = [start(kind) for kind in KINDS]
    for other in others:
        other.begin_to_count(path, rounds)
    fences = []
    for _ in range(rounds):
        with lock as lease:
            seen = int(path.read_text(encoding="ascii"))
            time.sleep(0.001)
            path.write_text(str(seen + 1), encoding="ascii")
            fences.append(lease.fence)
    assert sum(other.counted() for other in others) == rounds * len(KINDS)
    assert int(path.read_text(encoding="ascii")) == rounds * (len(KINDS) + 1)
    assert sorted(set(fences)) == fences
    for other in others:
        other.end()
