"""What cannot be right is refused before anything is sent, by a sentence that names the value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from core.worlds import Untouchable, untouchable
from dibs.core.checks import LONGEST_NAME, LONGEST_TIME, checked_length, checked_name, checked_timeout
from dibs.core.client import Client
from dibs.errors import Misuse
from dibs.runtime import run

NOT_NAMES = ["", None, b"bytes", 7, True, ["a"], "x" * 1001, "x" * 10_000, "🔒" * 251, "\ud800", "a\udfffb"]
NOT_LENGTHS = [
    10**5000,
    *(0, 0.0, -0.0, -1, -0.001, math.nan, math.inf, -math.inf, 1e30, 10**400, LONGEST_TIME + 1),
    *(True, False, "5", b"5", [], 1j, timedelta(0), timedelta(seconds=-1), timedelta.max),
]
NOT_TTLS = [*NOT_LENGTHS, None, 0.0004, 0.049, timedelta(microseconds=1)]
NOT_TIMEOUTS = [-1, -0.001, math.nan, math.inf, 1e30, 10**400, True, False, "5", [], timedelta(seconds=-1)]
NOT_FENCES = [0, -1, True, 1.0, "5", None, 2**63, 10**30, math.nan]
NOT_RESUMABLE = [
    *("", "x", None, b"dibs1", 5, "dibs1:::::", "dibs1:a:b:1:30", "dibs1:a:b:1:30:n:more", "dibs2:a:b:1:30:"),
    *("dibs1:a:b:one:30:", "dibs1:a:b:1:long:", "dibs1:a:b:0:30:", "dibs1:a:b:1:0:", "dibs1:a:b:1:nan:"),
    *("dibs1:a:b:1:inf:", "dibs1:a:b:1:-5:", "dibs1::b:1:30:", "dibs1:a::1:30:", f"dibs1:a:b:{2**63}:30:"),
    *("dibs1:%FF:b:1:30:"[:12], f"dibs1:{'a' * 1001}:b:1:30:"),
]

LOCK = [
    *(({"name": name}, name) for name in NOT_NAMES),
    *(({"ttl": ttl}, ttl) for ttl in NOT_TTLS),
    *(({"timeout": timeout}, timeout) for timeout in NOT_TIMEOUTS),
    *(({"note": note}, note) for note in NOT_NAMES if note != ""),
    *(({"max_hold": most}, most) for most in NOT_LENGTHS),
    ({"ttl": 30, "max_hold": 29}, 29),
    *(({"on_lost": way}, way) for way in ("", "raise", None, True, ["flag"], "CANCEL")),
]


def short(value: object) -> str:
    try:
        return repr(value)[:30]
    except ValueError:
        return "too large to show"


@pytest.mark.parametrize(("options", "wrong"), LOCK, ids=short)
def test_a_lock_that_cannot_be_is_refused(options: dict[str, Any], wrong: object) -> None:
    client = untouchable()
    assert_refused(client, lambda: client.lock(**{"name": "a", **options}), wrong)
    assert_refused(client, lambda: client.locked(**{"name": "a", **options}), wrong)


@pytest.mark.parametrize("timeout", NOT_TIMEOUTS, ids=short)
def test_an_acquire_that_cannot_be_is_refused(timeout: Any) -> None:
    client = untouchable()
    assert_refused(client, lambda: run(client.lock("a").acquire(timeout=timeout)), timeout)


@pytest.mark.parametrize("name", NOT_NAMES, ids=short)
def test_a_name_that_cannot_be_is_refused_by_every_method(name: Any) -> None:
    client = untouchable()
    assert_refused(client, lambda: run(client.show(name)), name)
    assert_refused(client, lambda: run(client.evict(name, fence=1)), name)
    if name != "":
        assert_refused(client, lambda: run(client.holders(name)), name)
        assert_refused(client, lambda: run(client.evict("a", fence=1, reason=name)), name)


@pytest.mark.parametrize("fence", NOT_FENCES, ids=short)
def test_a_fence_that_cannot_be_is_refused(fence: Any) -> None:
    client = untouchable()
    assert_refused(client, lambda: run(client.evict("a", fence=fence)), fence)


@pytest.mark.parametrize("text", NOT_RESUMABLE, ids=short)
def test_a_text_that_is_no_lease_is_refused(text: Any) -> None:
    client = untouchable()
    assert_refused(client, lambda: run(client.resume(text)), None)


def assert_refused(client: Client, call: Callable[[], object], wrong: object) -> None:
    """`Misuse`, nothing sent, and a sentence that names the value, or as much of it as helps."""
    with pytest.raises(Misuse) as refused:
        call()
    assert isinstance(client._store, Untouchable)
    assert client._store.touched == []
    said = str(refused.value)
    assert len(said.split()) >= 4, f"not a sentence: {said}"
    assert len(said) < 400
    if wrong not in (None, "") and not (isinstance(wrong, str) and len(wrong) > 40):
        assert short(wrong) in said, f"{said} does not name {wrong!r}"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1.0), (0.5, 0.5), (timedelta(milliseconds=250), 0.25), (LONGEST_TIME, LONGEST_TIME), (1e-9, 1e-9)],
)
def test_every_form_of_a_length_is_seconds(value: Any, seconds: float) -> None:
    assert checked_length(value, "ttl") == seconds
    assert type(checked_length(value, "ttl")) is float


def test_timeouts_may_be_none_and_zero() -> None:
    assert checked_timeout(None) is None
    assert checked_timeout(0) == 0.0
    assert checked_timeout(timedelta(0)) == 0.0
    assert checked_timeout(LONGEST_TIME) == LONGEST_TIME


def test_a_name_may_have_any_character_and_1000_bytes() -> None:
    for name in ("a", "\x00", " ", "🔒" * 250, "x" * LONGEST_NAME, "{}", "\u202e"):
        assert checked_name(name) is name


def test_a_refusal_says_what_would_be_right() -> None:
    client = untouchable()
    with pytest.raises(Misuse, match=re.escape("ttl='5': it is a number of seconds or a timedelta")):
        client.lock("a", ttl="5")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match=re.escape("ttl=0: it must be more than 0 seconds")):
        client.lock("a", ttl=0)
    with pytest.raises(Misuse, match=re.escape("timeout=-1: None waits for ever and 0 tries once")):
        client.lock("a", timeout=-1)
    with pytest.raises(Misuse, match="at most 1000 bytes, this one has 10000"):
        client.lock("x" * 10_000)
