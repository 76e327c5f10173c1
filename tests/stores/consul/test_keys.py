"""Names of any kind have keys of their own, which HTTP leaves as they are and people can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.stores.consul.keys import ConsulNaming, quoted

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(TEXT, TEXT)
def test_two_names_never_share_a_key(one: str, other: str) -> None:
    naming = ConsulNaming("dibs", "default")
    assert (naming.keys(one) == naming.keys(other)) == (one == other)


@given(TEXT, TEXT)
def test_every_key_tells_its_name_and_no_other_namespaces(space: str, name: str) -> None:
    naming = ConsulNaming("dibs", space)
    for key in naming.keys(name)[1:]:
        assert naming.name(key) == name
    assert naming.name(naming.client("a-session")) is None


@given(TEXT)
def test_a_part_of_a_key_is_one_that_a_path_keeps(name: str) -> None:
    part = quoted(name)
    assert part.isascii()
    assert part not in {"", ".", ".."}
    assert "/" not in part
    assert not part.startswith(".")


@given(TEXT, TEXT)
def test_what_begins_a_name_begins_its_keys(name: str, more: str) -> None:
    naming = ConsulNaming("dibs", "default")
    assert naming.keys(name + more).held.startswith(naming.under(name))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("invoice:42", "invoice:42/.lock"),
        ("a/b", "a%2Fb/.lock"),
        ("..", "%2E./.lock"),
        (".lock", "%2Elock/.lock"),
        ("100%", "100%25/.lock"),
        ("é", "%C3%A9/.lock"),
    ],
)
def test_keys_stay_what_they_are(name: str, key: str) -> None:
    """Golden: other values would split the locks between two versions of dibs."""
    assert ConsulNaming("dibs", "default").keys(name).held == f"dibs/default/{key}"
