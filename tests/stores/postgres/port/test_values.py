"""Every text comes back as it was given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dibs.stores.postgres.port.values import original, text, texts

TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x00\x010"))


@given(TEXTS)
def test_a_text_comes_back_and_has_no_nul_on_the_way(value: str) -> None:
    stored = text(value)
    assert b"\x00" not in stored
    assert original(stored.decode()) == value


@given(TEXTS, TEXTS)
def test_a_prefix_stays_a_prefix(value: str, more: str) -> None:
    assert text(value + more).startswith(text(value))


@given(TEXTS, TEXTS)
def test_two_texts_stay_two(one: str, other: str) -> None:
    assert (text(one) == text(other)) == (one == other)


def test_arrays_quote_what_would_end_them() -> None:
    assert texts(['a"b', "c\\d", "e,f", "{}"]) == b'{"a\\"b","c\\\\d","e,f","{}"}'
