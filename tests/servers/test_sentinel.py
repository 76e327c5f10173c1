"""The sentinels fail over, when asked and when the master is dead."""

from __future__ import annotations

import pytest

from servers.node import Kind
from servers.sentinel import SentinelTrio


def test_on_demand(sentinel: SentinelTrio) -> None:
    """The replica is promoted, and the old master follows it."""
    old, new = sentinel.master, sentinel.replica
    with old.client() as client:
        client("SET", "key", "value")
        assert client("WAIT", 1, 5_000) == 1
    assert sentinel.failover() is new
    assert (sentinel.master, sentinel.replica) == (new, old)
    assert new.command("GET", "key") == "value"


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_after_a_crash(kind: Kind) -> None:
    """The sentinels do it by themselves."""
    with SentinelTrio(kind) as trio:
        old, new = trio.master, trio.replica
        old.kill9()
        assert trio.await_failover(old) is new
