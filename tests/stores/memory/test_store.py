"""What is special to the memory store; the rest is in the contract."""

from __future__ import annotations

import pytest

import dibs
from dibs.holder import Holder
from dibs.stores.memory.port.server import MemoryServer

WHO = Holder("a", 0, "host", 1, "user", "", 0.0, None)


def test_clients_of_one_name_share_a_table_and_others_do_not() -> None:
    with dibs.connect("memory:one") as one, dibs.connect("memory:one") as same, dibs.connect("memory:two") as other:
        lease = one.lock("a").acquire()
        assert same.lock("a").try_acquire() is None
        with other.lock("a", timeout=0):
            pass
        lease.release()


def test_a_name_may_be_quoted() -> None:
    with dibs.connect("memory:a%20b") as quoted, dibs.connect("memory:a b") as plain:
        lease = quoted.lock("a").acquire()
        assert plain.lock("a").try_acquire() is None
        lease.release()


@pytest.mark.parametrize("url", ["memory:/x", "memory://host", "memory:///x"])
def test_a_path_or_host_is_refused(url: str) -> None:
    with pytest.raises(dibs.Misuse, match="write memory: or memory:NAME"):
        dibs.connect(url)


def test_a_fence_rises_although_the_wall_clock_falls() -> None:
    wall = iter([2000, 2000, 1000, 1000, 5, 5, 3000, 3000])
    server = MemoryServer(lambda: 0.0, lambda: next(wall))
    fences = []
    for turn in range(4):
        fences.append(server.grant("", WHO, f"token {turn}", 10, queue=False))
        server.release("", "a", f"token {turn}")
    assert fences == [2000, 2001, 2002, 3000]
