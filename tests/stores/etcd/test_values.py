"""Values of etcd: facts for people, read back, and never trusted to be ours."""

from __future__ import annotations

import pytest

from dibs.errors import LossReason
from dibs.holder import Eviction, Holder
from dibs.stores.etcd import values
from dibs.stores.etcd.keys import base64
from dibs.stores.etcd.requests import Pair

WHO = Holder("a", 0, "host", 7, "me", "nightly: ü", 0.0, None)


def test_the_holder_is_read_back() -> None:
    value = values.facts(WHO, 12.5)
    assert values.holder("a", 9, pair(value), 3.0) == WHO._replace(fence=9, since=12.5, expires_in=3.0)
    assert values.since(value) == 12.5


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"host": 1}', "\udcff".encode("utf-8", "surrogateescape").hex()]
)
def test_what_is_not_ours_is_told_so(text: str) -> None:
    assert "another program" in values.holder("a", 9, pair(base64(text)), None).note
    assert values.read_evicted(base64(text)) is None
    assert values.since(base64(text)) == 0.0


def test_facts_of_the_wrong_kind_do_no_harm() -> None:
    odd = pair(base64('{"host": 1, "pid": "x", "user": null, "since": "y", "note": []}'))
    assert "another program" in values.holder("a", 9, odd, None).note
    late = pair(base64('{"host": "h", "pid": 7, "user": "u", "since": 1e300, "note": []}'))
    assert values.holder("a", 9, late, None) == Holder("a", 9, "h", 7, "u", "", 0.0, None)
    assert str(values.holder("a", 9, late, None))


def test_a_key_without_a_lease_is_told_to_have_no_end_and_how_it_is_removed() -> None:
    for value in (values.facts(WHO, 12.5), base64("x")):
        assert values.holder("a", 9, pair(value, lease=0), None).note.endswith("remove it with dibs evict")


def pair(value: str, lease: int = 7) -> Pair:
    return Pair("key", 9, 9, value, lease)


def test_an_eviction_is_read_back_and_is_the_reason_of_the_one_token_it_broke() -> None:
    record = values.Evicted("t1", "t2", Eviction(9, "it hangs", "me on host pid 7", 12.5))
    value = values.evicted(record)
    assert values.read_evicted(value) == record
    assert values.why_not(value, "t1") is LossReason.EVICTED
    assert values.why_not(value, "t3") is values.why_not("", "t1") is LossReason.TAKEN
