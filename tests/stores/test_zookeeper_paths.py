"""Names as parts of paths, and the order of nodes."""

from __future__ import annotations

import pytest

from dibs.part import MOST_SLOTS, SHARED, Part, part_of
from dibs.stores.zookeeper_paths import Paths, decoded, encoded, guid, in_line
from dibs.testing.contract.names import HOSTILE


def test_each_name_is_one_part_of_a_path_and_can_be_read_back() -> None:
    parts = [encoded(name) for name in [*HOSTILE, ".", "..", "%", "", "zookeeper"]]
    assert len(set(parts)) == len(parts)
    assert [decoded(part) for part in parts[:-2]] == [*HOSTILE, ".", "..", "%"]
    assert all(part.isascii() and part.isprintable() and "/" not in part for part in parts)
    assert not {".", "..", ""} & set(parts)


def test_what_was_not_encoded_by_us_is_no_name() -> None:
    for part in ("%2e", "%41", ".", "a%2", "%zz"):
        assert decoded(part) is None


def test_no_name_has_the_node_of_the_evictions() -> None:
    paths = Paths("/dibs", "default")
    assert paths.broken == "/dibs/default/%"
    assert paths.broken not in [paths.parent(name) for name in HOSTILE]


def test_the_folders_above_are_known_from_the_top() -> None:
    assert Paths("/apps/locks", "a/b").above == ["/apps", "/apps/locks"]
    assert Paths("/apps/locks", "a/b").space == "/apps/locks/a%2Fb"


@pytest.mark.parametrize("first", [0, 7, 2**31 - 3, -(2**31), -2])
def test_the_order_is_that_of_the_server_also_where_its_numbers_wrap(first: int) -> None:
    numbers = [(first + step + 2**31) % 2**32 - 2**31 for step in range(5)]
    names = [f"{guid(str(number))}-{number:010d}" for number in numbers]
    for turn in range(5):
        assert in_line(names[turn:] + names[:turn]) == names


def test_nodes_of_others_are_not_in_line() -> None:
    assert in_line(["lock-0000000001", f"{'x' * 32}-", f"{'x' * 32}-one", "7"]) == []


@pytest.mark.parametrize("part", [None, SHARED, Part(1, 3), Part(MOST_SLOTS, MOST_SLOTS)])
def test_a_guid_tells_the_part_and_nothing_else_of_its_token(part: Part | None) -> None:
    one, other = (guid(secret if part is None else part.token(secret)) for secret in ("token", "Token"))
    assert part_of(one) == part_of(f"{one}-0000000007") == part
    assert len(one) == 32
    assert one != other
    assert "token" not in one


def test_to_an_older_dibs_a_part_is_a_place_in_line_like_any_other() -> None:
    """It counted what follows the first 32 characters and a dash, and let in who has the lowest number."""
    node = f"{guid(SHARED.token('token'))}-0000000007"
    assert (node[32], int(node[33:])) == ("-", 7)
