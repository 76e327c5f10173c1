"""A write in Consul that is done only under a lease that holds."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

import dibs
from dibs.errors import Misuse, StaleFence
from dibs.guards import consul as guard
from servers.consul import ConsulServer


@pytest.fixture
def client(consul: ConsulServer) -> Iterator[dibs.Client]:
    with dibs.connect(consul.url) as client:
        yield client


def sent(consul: ConsulServer, body: list[dict[str, Any]]) -> dict[str, Any]:
    """What Consul answers, also where it refuses."""
    try:
        return dict(consul.ask("PUT", "/v1/txn", body))
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()))


def test_it_is_done_while_the_lease_holds(consul: ConsulServer, client: dibs.Client) -> None:
    with client.lock("primary") as lease:
        guard.check(lease, sent(consul, guard.guarded(lease, guard.put("primary", "db2"), guard.put("more", b"x"))))
        lease.renew()
        guard.check(lease, sent(consul, guard.guarded(lease, guard.put("primary", "db3"))))
    assert consul.kv("primary")["Value"] == "ZGIz"


@pytest.mark.parametrize("next_holder", [True, False])
def test_it_is_refused_when_the_lease_is_over(consul: ConsulServer, client: dibs.Client, next_holder: bool) -> None:
    """Whoever stood still between the look at the lease and the write: nothing else could tell."""
    lease = client.lock("primary").acquire()
    body = guard.guarded(lease, guard.put("data", "stale"))
    assert client.evict("primary", fence=lease.fence)
    with dibs.connect(consul.url) as other:
        fence = other.lock("primary").acquire().fence if next_holder else lease.fence
        with pytest.raises(StaleFence) as refused:
            guard.check(lease, sent(consul, body))
    assert refused.value.current == fence
    assert consul.ask("GET", "/v1/kv/data") is None


def test_a_condition_of_ones_own_is_not_taken_for_a_lost_lease(consul: ConsulServer, client: dibs.Client) -> None:
    with client.lock("primary") as lease:
        mine = {"KV": {"Verb": "check-index", "Key": "nothing", "Index": 1}}
        answer = sent(consul, guard.guarded(lease, mine, guard.put("data", "x")))
        guard.check(lease, answer)
    assert [error["OpIndex"] for error in answer["Errors"]] == [1]


def test_what_cannot_be_right_is_refused(client: dibs.Client) -> None:
    with dibs.connect("memory:guards") as memory, memory.lock("primary") as other, pytest.raises(Misuse):
        guard.guarded(other, guard.put("data", "x"))
    with client.lock("primary") as lease:
        with pytest.raises(Misuse, match="at most 63"):
            guard.guarded(lease, *[guard.put("data", "x")] * 64)
        with pytest.raises(Misuse, match="no answer"):
            guard.check(lease, {"succeeded": True})
