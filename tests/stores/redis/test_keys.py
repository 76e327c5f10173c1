"""Names and keys: readable where they can be, never the same for two names, always in one slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import Misuse
from dibs.stores.redis.keys import RedisKeys, RedisNaming
from dibs.stores.redis.port.topology import slot

NAMES = st.text(min_size=1, max_size=30, alphabet=st.characters(exclude_categories=["Cs"])) | st.text(
    alphabet="{}%:*?[]\\^a", min_size=1, max_size=6
)


def test_the_key_of_an_ordinary_name_is_what_people_expect() -> None:
    assert RedisNaming("default").keys("invoice:42") == RedisKeys(
        b"dibs:{default:invoice:42}",
        b"dibs:{default:invoice:42}:fence",
        b"dibs:{default:invoice:42}:line",
        b"dibs:{default:invoice:42}:tickets",
        b"dibs:{default:invoice:42}:evicted",
        b"dibs:{default:invoice:42}:record",
        b"dibs:{default:invoice:42}:ends",
        b"dibs:{default:invoice:42}:parts",
    )


@given(NAMES, NAMES, NAMES, NAMES)
def test_distinct_names_have_distinct_keys(space: str, name: str, other_space: str, other: str) -> None:
    same = (space, name) == (other_space, other)
    assert (RedisNaming(space).key(name) == RedisNaming(other_space).key(other)) == same


@given(NAMES, NAMES)
def test_a_key_is_read_back_as_its_name(space: str, name: str) -> None:
    naming = RedisNaming(space)
    keys = naming.keys(name)
    assert naming.name(keys.lock) == name
    assert [naming.name(key) for key in keys[1:]] == [None] * (len(keys) - 1)


@given(NAMES, st.sampled_from([None, "{name}", "jobs:{name}", "{{name}}", "}{name}", "{name}{", "{a}{name}"]))
def test_all_keys_of_a_lock_are_in_one_slot(name: str, template: str | None) -> None:
    keys = RedisNaming("default", template).keys(name)
    assert len({slot(key) for key in keys}) == 1
    assert len(set(keys)) == len(keys)


def test_they_are_also_if_the_key_and_a_longer_one_share_a_slot_by_chance() -> None:
    key = b"jobs:16420"
    assert slot(key) == slot(key + b":") != slot(key + b":dibs:fence")
    assert {slot(key) for key in RedisNaming("default", "jobs:{name}").keys("16420")} == {slot(key)}


def test_a_template_names_the_keys_of_other_programs_byte_for_byte() -> None:
    assert RedisNaming("default", "billing:{name}:lock").keys("a{}b").lock == b"billing:a{}b:lock"
    assert RedisNaming("shop", "{namespace}/{name}").keys("a").lock == b"shop/a"


@pytest.mark.parametrize(
    ("namespace", "template"), [("default", "lock"), ("default", "{name}{name}"), ("shop", "{name}")]
)
def test_a_template_that_would_mix_up_locks_is_misuse(namespace: str, template: str) -> None:
    with pytest.raises(Misuse):
        RedisNaming(namespace, template)


@pytest.mark.parametrize(
    ("key", "number"),
    [(b"123456789", 0x31C3), (b"foo{bar}baz", 5061), (b"foo{}{bar}", 8363), (b"foo{{bar}}zap", 4015), (b"bar", 5061)],
)
def test_slots_are_those_of_the_cluster_specification(key: bytes, number: int) -> None:
    assert slot(key) == number
