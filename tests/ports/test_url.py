"""A URL is read strictly: every part means something, and none of it is quoted in an error."""

from __future__ import annotations

import pytest

from dibs.errors import Misuse
from dibs.ports.url import Host, read


def test_every_part_is_decoded() -> None:
    url = read("Redis://us%40er:p%2Fw:%25@h1:70,[::1]:80,h-3.x_y/a%20b?one=1%262&two=a+b")
    assert (url.scheme, url.user, url.password, url.path) == ("redis", "us@er", "p/w:%", "/a b")
    assert url.hosts == (Host("h1", 70), Host("::1", 80), Host("h-3.x_y", 0))
    assert url.query == {"one": "1&2", "two": "a b"}


def test_what_is_shown_has_no_password_and_nothing_of_the_query() -> None:
    url = read("etcd://me:secret@h1:1,[::1]/path?token=secret")
    assert url.shown == "etcd://…@h1:1,[::1]"
    assert "secret" not in repr(url)


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        ("", "no //"),
        ("host", "no //"),
        ("/host", "no //"),
        ("//", "no host"),
        ("//:80", "no host"),
        ("//a:b@", "no host"),
        ("//h1,,h2", "no host"),
        ("//h1,", "no host"),
        ("//h:0", "ports from 1"),
        ("//h:65536", "ports from 1"),
        ("//h:", "ports from 1"),
        ("//h:+1", "ports from 1"),
        ("//h:1_0", "ports from 1"),
        ("//h:\u0661", "ports from 1"),
        ("//h:1:2", "ports from 1"),
        ("//::1", "ports from 1"),
        ("//[::1", "no host"),
        ("//[::g]", "no host"),
        ("//[h]", "no host"),
        ("//[::1]x", "no host"),
        ("//h]", "no host"),
        ("//h st", "space"),
        ("//host/\n", "control character"),
        ("//host/%0a", "control character"),
        ("//host/%00", "%"),
        ("//host/%zz", "%"),
        ("//:%ff@host", "%"),
        ("//:50%@host", "%"),
        ("//host#", "#"),
        ("//:a#b@host", "#"),
        ("//:a/b@host", "behind its host"),
        ("//:a?b@host", "behind its host"),
        ("//host?a=b@c", "behind its host"),
        ("//@host", "nothing before"),
        ("//:@host", "nothing before"),
        ("//host?a", "without a value"),
        ("//host?", "without a value"),
        ("//host?a=", "without a value"),
        ("//host?=a", "without a value"),
        ("//host?a=1&a=2", "twice"),
        ("//host?a=1&%61=1", "twice"),
        ("//h/p?a=1&&b=2", "without a value"),
    ],
)
def test_a_malformed_one_is_refused(rest: str, problem: str) -> None:
    with pytest.raises(Misuse, match=problem.replace("?", r"\?")) as refused:
        read(f"redis:{rest}")
    assert refused.value.__context__ is None


def test_an_unknown_option_is_not_quoted_but_the_one_that_was_meant_is() -> None:
    url = read("redis://h?min_replica=1")
    with pytest.raises(Misuse, match=r"did you mean min_replicas\? known here: key, min_replicas") as refused:
        url.refuse_unknown(("key", "min_replicas"))
    assert "min_replica=" not in str(refused.value)
