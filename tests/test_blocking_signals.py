"""A signal handler that takes a lock, at each moment at which it may come in the midst of another lock being taken."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import dibs
from dibs.guards import memory
from servers.redis import RedisServer
from test_blocking_ctrl_c import CTRL_C, url
from test_blocking_ctrl_c_everywhere import Presser

__all__ = ["url"]  # a fixture

SIGNAL = CTRL_C
"""It comes where Ctrl-C would, and its handler goes on with work."""

FOR_EVER = 60
"""Seconds after which whoever still waits in one step waits for itself."""


@pytest.fixture
def redlock(start_redis: Callable[..., RedisServer]) -> str:
    return "redlock://" + ",".join(f"127.0.0.1:{start_redis().port}" for _ in range(3))


@pytest.fixture
def one_redis(start_redis: Callable[..., RedisServer]) -> str:
    return start_redis().url


@pytest.fixture
def an_end() -> Iterator[None]:
    """A step that never ends fails."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"a step did not end within {FOR_EVER} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, FOR_EVER)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def a_block(client: dibs.Client) -> None:
    with client.lock("a", ttl=60) as lease:
        lease.check()
        lease.renew()


def a_wait(client: dibs.Client) -> None:
    with pytest.raises(dibs.NotAcquired):
        client.lock("taken").acquire(timeout=0.001)


def a_guard(client: dibs.Client) -> None:
    with client.lock("a", ttl=60).guarded(GUARD):
        pass


GUARD = memory.MemoryGuard()


@pytest.mark.usefixtures("an_end")
@pytest.mark.parametrize("story", [a_block, a_wait, a_guard], ids=lambda story: story.__name__)
@pytest.mark.parametrize("store", ["url", "one_redis", "redlock"], ids=["memory", "redis", "redlock"])
def test_a_signal_handler_that_takes_a_lock_never_waits_for_itself(
    store: str, story: Callable[[dibs.Client], None], request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(store)
    came, went = list[Any](), list[str]()
    with dibs.connect(url) as client, dibs.connect(url) as other:
        taken = other.lock("taken", ttl=600).acquire()

        def handle(number: int, frame: FrameType | None) -> None:
            came.append(frame)
            for each in (client, other):
                try:
                    with each.lock("b", ttl=60, timeout=20).guarded(GUARD) as lease:
                        lease.renew()
                except (dibs.StoreUnavailable, dibs.Misuse) as refused:
                    went.append(str(refused))

        before = signal.signal(SIGNAL, handle)
        try:
            for at in itertools.count(1):
                presser, tracing = Presser(at), sys.gettrace()
                try:
                    sys.settrace(presser)
                    story(client)
                finally:
                    sys.settrace(tracing)
                if not presser.where:
                    break
        finally:
            signal.signal(SIGNAL, before)
        taken.release()
        for name in ("a", "b", "taken"):
            other.lock(name).acquire(timeout=20).release()
    assert len(came) > 20
    assert [text for text in went if "a signal handler cannot" not in text] == []
