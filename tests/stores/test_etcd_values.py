"""Values of etcd: facts for people, read back, and never trusted to be ours."""

from __future__ import annotations

import pytest

from dibs.errors import LossReason
from dibs.holder import Eviction, Holder
from dibs.stores import etcd_values as values
from dibs.stores.etcd_keys import base64

WHO = Holder("a", 0, "host", 7, "me", "nightly: ü", 0.0, None)


def test_who_holds_is_read_back() -> None:
    value = values.facts(WHO, 12.5)
    assert values.holder("a", 9, value, 3.0) == WHO._replace(fence=9, since=12.5, expires_in=3.0)
    assert values.since(value) == 12.5


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"host": 1}', "\udcff".encode("utf-8", "surrogateescape").hex()]
)
def test_what_is_not_ours_is_told_so(text: str) -> None:
    assert "another program" in values.holder("a", 9, base64(text), None).note
    assert values.read_broken(base64(text)) is None
    assert values.since(base64(text)) == 0.0


def test_facts_of_the_wrong_kind_do_no_harm() -> None:
    odd = base64('{"host": 1, "pid": "x", "user": null, "since": "y", "note": []}')
    assert values.holder("a", 9, odd, None) == Holder("a", 9, "1", 0, "None", "[]", 0.0, None)


def test_an_eviction_is_read_back_and_is_the_reason_of_the_one_token_it_broke() -> None:
    record = values.Broken("t1", "t2", Eviction(9, "it hangs", "me on host pid 7", 12.5))
    value = values.broken(record)
    assert values.read_broken(value) == record
    assert values.why_not(value, "t1") is LossReason.EVICTED
    assert values.why_not(value, "t3") is values.why_not("", "t1") is LossReason.TAKEN
