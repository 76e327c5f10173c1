"""URLs of stores behind HTTP: servers, user, TLS, and nothing that is not understood."""

from __future__ import annotations

import pytest

from dibs.errors import Misuse
from dibs.ports.http.source import Endpoint, HttpSource, Tls, from_url


def read(url: str, *, tls: bool = False) -> tuple[HttpSource, dict[str, str], str]:
    return from_url(url, kind="etcd", port=2379, tls=tls, ours={"prefix"})


def test_several_servers_with_and_without_a_port() -> None:
    source, options, path = read("etcd://h1:23790,h2,[::1]:99/a%20b?prefix=x")
    assert source.endpoints == (Endpoint("h1", 23790), Endpoint("h2", 2379), Endpoint("::1", 99))
    assert (source.tls, options, path) == (None, {"prefix": "x"}, "/a b")
    assert str(source) == "etcd h1:23790, h2:2379, [::1]:99"


def test_a_user_and_a_password() -> None:
    source, _, _ = read("etcd://m%40e:p%2Fw:1@h1")
    assert (source.user, source.password) == ("m@e", "p/w:1")
    assert "p/w" not in str(source)


def test_how_tls_is_done() -> None:
    source, _, _ = read("etcds://h1?verify=no&ca=/a&cert=/b&key=/c", tls=True)
    assert source.tls == Tls(False, "/a", "/b", "/c")
    assert read("etcds://h1", tls=True)[0].tls == Tls()


@pytest.mark.parametrize(
    ("url", "tls", "says"),
    [
        ("etcd:h1", False, "no // after its colon"),
        ("etcd://h1:port", False, "a host or port that cannot be one"),
        ("etcd://me:secret@h1:port", False, "a host or port that cannot be one"),
        ("etcd://h1?ca=/a", False, "those of TLS need etcds://"),
        ("etcd://h1?prefx=/a", False, r"did you mean prefix\? known here: prefix"),
        ("etcds://h1?verify=maybe", True, "yes or no"),
        ("etcds://h1?key=/a", True, "cert=… is missing"),
    ],
)
def test_what_is_not_understood_is_misuse(url: str, tls: bool, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        read(url, tls=tls)
    assert "secret" not in str(caught.value)
