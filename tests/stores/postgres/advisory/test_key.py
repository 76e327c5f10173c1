"""The key of a name never changes, and no two names share one."""

from __future__ import annotations

import pytest

from dibs.stores.postgres.advisory.key import advisory_key


@pytest.mark.parametrize(
    ("namespace", "name", "key"),
    [
        ("default", "nightly-report", -4717885334385312609),
        ("default", "invoice:42", 1992404930157630579),
        ("shop", "invoice:42", -4314423507191255723),
        ("default", "a\x00b", 2960362697977478550),
        ("default", "🔒", -5489345577191768118),
        ("a", "b:c", 2878095411046230019),
        ("a:b", "c", 6437943141564327866),
    ],
)
def test_the_keys_of_names_are_those_of_every_version(namespace: str, name: str, key: int) -> None:
    assert advisory_key(namespace, name) == key


def test_a_million_names_have_a_million_keys() -> None:
    keys = {advisory_key("default", f"job:{number}") for number in range(1_000_000)}
    assert len(keys) == 1_000_000
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_what_is_namespace_and_what_is_name_makes_a_difference() -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("ab", "c"), ("a", "bc"), ("a\x00", "b"), ("a", "\x00b"), ("A", "bc")]
    assert len({advisory_key(*pair) for pair in pairs}) == len(pairs)
