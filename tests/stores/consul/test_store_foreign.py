"""What an administrator, or another program, does to the keys and sessions of Consul."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import dibs
from dibs.errors import LossReason, NotAcquired
from servers.consul import ConsulServer

ODD: list[Any] = [
    {"token": "t", "pid": "x", "host": [], "delay": "y", "own": "z"},
    {"token": "t", "since": 1e300, "host": "h", "user": "u", "pid": 1},
    {"token": 5},
    [1],
]


def key(consul: ConsulServer, name: str, what: str) -> str:
    return f"/v1/kv/{consul.root}/default/{name}/{what}"


def locked(consul: ConsulServer, name: str, value: bytes = b"theirs") -> str:
    """Another program locks *name* with a session that has no ttl."""
    session = str(consul.ask("PUT", "/v1/session/create", {"Name": "theirs"})["ID"])
    assert consul.ask("PUT", f"{key(consul, name, '.lock')}?acquire={session}", value)
    return session


def test_a_session_without_a_ttl_is_shown_with_how_to_end_it_and_a_wait_for_it_is_not_silent(
    consul: ConsulServer, caplog: pytest.LogCaptureFixture
) -> None:
    session = locked(consul, "job")
    with dibs.connect(consul.url) as client:
        with caplog.at_level(logging.WARNING, "dibs"), pytest.raises(NotAcquired, match=session):
            client.lock("job").acquire(timeout=0.3)
        assert [record.getMessage() for record in caplog.records if "may not end" in record.getMessage()]
        [holder] = client.holders()
        assert "dibs evict" in holder.note
        assert client.show("job").holder is not None
        assert client.evict("job", fence=holder.fence)
        assert client.lock("job").acquire(timeout=5).fence > holder.fence


def test_a_key_that_is_written_over_is_a_loss_and_the_next_gets_in(consul: ConsulServer) -> None:
    with dibs.connect(consul.url) as client, dibs.connect(consul.url) as other:
        lease, kept = client.lock("job", ttl=30).acquire(), client.lock("kept", ttl=30).acquire()
        consul.ask("PUT", key(consul, "job", ".lock"), b"by hand")
        with pytest.raises(dibs.LeaseLost):
            lease.renew()
        assert lease.lost_reason is LossReason.TAKEN
        assert other.lock("job").acquire(timeout=5).fence > lease.fence
        kept.renew()


def test_a_key_that_is_written_over_and_given_back_is_free(consul: ConsulServer) -> None:
    with dibs.connect(consul.url) as client, dibs.connect(consul.url) as other:
        lease, kept = client.lock("job", ttl=30).acquire(), client.lock("kept", ttl=30).acquire()
        consul.ask("PUT", key(consul, "job", ".lock"), b"by hand")
        with pytest.raises(dibs.LeaseLost):
            lease.release()
        assert other.lock("job").acquire(timeout=5).fence > lease.fence
        kept.renew()


def test_what_others_wrote_harms_no_other_name(consul: ConsulServer) -> None:
    with dibs.connect(consul.url) as client:
        lease = client.lock("ours").acquire()
        for number, facts in enumerate([*(json.dumps(odd).encode() for odd in ODD), b"[" * 100_000, b"\xff"]):
            locked(consul, f"odd-{number}", facts)
            for what in (".evicted", ".last", ".line/x"):
                consul.ask("PUT", key(consul, f"odd-{number}", what), facts)
            assert client.lock(f"odd-{number}").try_acquire() is None
            with pytest.raises(NotAcquired) as refused:
                client.lock(f"odd-{number}").acquire(timeout=0.1)
            assert str(refused.value)
            assert str(client.show(f"odd-{number}").holder)
        assert [holder.name for holder in client.holders()] == [*(f"odd-{number}" for number in range(6)), "ours"]
        lease.release()


def test_all_keys_deleted_is_a_loss_for_all_and_fences_rise(consul: ConsulServer) -> None:
    with dibs.connect(consul.url) as client:
        leases = [client.lock(name, ttl=30).acquire() for name in ("a", "b")]
        consul.ask("DELETE", f"/v1/kv/{consul.root}?recurse")
        for lease in leases:
            with pytest.raises(dibs.LeaseLost):
                lease.renew()
            assert lease.lost_reason is LossReason.TAKEN
            assert client.lock(lease.name, ttl=30).acquire(timeout=5).fence > lease.fence
