"""The strings in Redis are read back as they were written, and never mistaken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.holder import Holder
from dibs.stores.redis import values

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)


@given(TEXT, TEXT, TEXT, st.integers(1, 2**53 - 1))
def test_the_holder_is_read_back_as_it_was_written(host: str, user: str, note: str, fence: int) -> None:
    who = Holder("name", 0, host, 42, user, note, 0.0, None)
    raw = f"dibs:{values.quoted('t:o%k')}:{fence}:1700000000000000:{values.facts(who)}".encode()
    read = values.holder("name", b"key", raw, 0, 1500)
    assert read == Holder("name", fence, host, 42, user, note, 1.7e9, 1.5)
    value = values.read_value(raw)
    assert value is not None
    assert value.token == values.quoted("t:o%k")


@given(TEXT.filter(bool), TEXT.filter(bool))
def test_distinct_tokens_stay_distinct_and_contain_no_separator(one: str, other: str) -> None:
    assert (values.quoted(one) == values.quoted(other)) == (one == other)
    assert not set(":\r\n ") & set(values.quoted(one))


@pytest.mark.parametrize("raw", [b"", b"token", b"dibs:", b"dibs:a:b:c:d", b"dibs:a:1:2", b"\xff\xfe", b"DIBS:a:1:2:f"])
def test_what_we_did_not_write_is_somebody_elses(raw: bytes) -> None:
    assert values.read_value(raw) is None
    holder = values.holder("name", b"key", raw, 1_700_000_000_000_000, 1500)
    assert (holder.fence, holder.expires_in, holder.since) == (0, 1.5, 1.7e9)


def test_a_damaged_value_of_ours_is_still_shown() -> None:
    assert values.holder("name", b"key", b"dibs:t:7:8:host", 0, 0).user == "unknown"
    assert values.eviction(b"damaged") is None


def test_a_ticket_counts_until_its_moment() -> None:
    assert values.still_counts(b"1000 channel facts", 999)
    assert not values.still_counts(b"1000 channel facts", 1000)
    assert not values.still_counts(b"damaged", 0)
