"""What a URL and a KazooClient say of where the ensemble is."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.security import make_digest_acl

from dibs.errors import Misuse
from dibs.stores.zookeeper.port.source import BASE, from_client, from_url


def test_hosts_have_the_usual_port_and_the_chroot_is_for_all() -> None:
    source = from_url("zookeeper://h1,h2:2182,[::1]:2183/apps/locks/")
    assert source.hosts == ("h1:2181", "h2:2182", "[::1]:2183")
    assert source.base == "/apps/locks"
    assert not source.login
    assert not source.private
    assert from_url("zookeeper://localhost").hosts == ("localhost:2181",)
    assert from_url("zookeeper://h1").base == from_url("zookeeper://h1/").base == BASE


def test_a_password_is_read_and_not_shown() -> None:
    source = from_url("zookeeper://al%40ice:p%3Aq@h1/x")
    assert source.login == {("digest", "al@ice:p:q")}
    assert source.private
    assert source.shown == "zookeeper://…@h1/x"
    assert not from_url("zookeeper://alice:secret@h1/x?private=no").private


def test_tls_checks_the_name_of_the_host_unless_told_not_to() -> None:
    assert from_url("zookeepers://h1?ca=a.pem&cert=c.pem&key=k.pem").options == {
        "use_ssl": True,
        "check_hostname": True,
        "ca": "a.pem",
        "certfile": "c.pem",
        "keyfile": "k.pem",
    }
    assert from_url("zookeepers://h1?check_hostname=no").options["check_hostname"] is False


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("zookeeper://h1:port", "hosts are written as in"),
        ("zookeeper://h1,,h2", "hosts are written as in"),
        ("zookeeper://h1:99999", "hosts are written as in"),
        ("zookeeper://h1/a//b", "the path is a chroot"),
        ("zookeeper://h1/a/../b", "the path is a chroot"),
        ("zookeeper://h1/a%00", "a % that"),
        ("zookeeper://h1?ca=x", "those of TLS need zookeepers://"),
        ("zookeeper://h1?private=perhaps", "private is yes or no"),
        ("zookeeper://alice:secret@h1:port", "hosts are written as in"),
    ],
)
def test_what_cannot_be_meant_is_refused_without_the_password(url: str, complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint) as refused:
        from_url(url)
    assert "secret" not in str(refused.value)


def test_a_client_of_kazoo_is_copied_with_its_login_and_tls() -> None:
    acl = [make_digest_acl("alice", "secret", all=True)]
    login = [("digest", "alice:secret")]
    theirs = KazooClient("h1:2182,h2/apps", auth_data=login, default_acl=acl, use_ssl=True, ca="a.pem")
    source = from_client(theirs)
    assert sorted(source.hosts) == ["h1:2182", "h2:2181"]
    assert (source.base, source.private) == ("/apps", True)
    assert source.login == {("digest", "alice:secret")}
    assert source.options["use_ssl"]
    assert source.options["ca"] == "a.pem"
    assert "secret" not in source.shown


def test_a_client_with_other_threads_than_ours_is_refused() -> None:
    class Green:
        name = "sequential_gevent_handler"

        def __getattr__(self, name: str) -> Any:
            return getattr(SequentialThreadingHandler(), name)

    with pytest.raises(Misuse, match="sequential_gevent_handler"):
        from_client(KazooClient(handler=Green()))
    with pytest.raises(Misuse, match="dict is no KazooClient"):
        from_client({})
