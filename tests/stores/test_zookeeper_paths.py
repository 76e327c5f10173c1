"""Names as parts of paths, and the order of nodes."""

from __future__ import annotations

import pytest

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


def test_a_guid_does_not_tell_its_token() -> None:
    assert len(guid("token")) == 32
    assert guid("token") != guid("Token")
    assert "token" not in guid("token")
