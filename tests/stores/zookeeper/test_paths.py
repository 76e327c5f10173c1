"""Names as components of paths, and the order of nodes."""

from __future__ import annotations

import pytest

from dibs.share import MOST_SLOTS, SHARED, Share, share_of
from dibs.stores.zookeeper.paths import Paths, decoded, encoded, guid, queue_order
from dibs.testing.contract.names import HOSTILE


def test_each_name_is_one_component_of_a_path_and_can_be_read_back() -> None:
    components = [encoded(name) for name in [*HOSTILE, ".", "..", "%", "", "zookeeper"]]
    assert len(set(components)) == len(components)
    assert [decoded(each) for each in components[:-2]] == [*HOSTILE, ".", "..", "%"]
    assert all(each.isascii() and each.isprintable() and "/" not in each for each in components)
    assert not {".", "..", ""} & set(components)


def test_a_component_that_we_did_not_encode_is_no_name() -> None:
    for component in ("%2e", "%41", ".", "a%2", "%zz"):
        assert decoded(component) is None


def test_no_name_has_the_node_of_the_evictions() -> None:
    paths = Paths("/dibs", "default")
    assert paths.evictions == "/dibs/default/%"
    assert paths.evictions not in [paths.parent(name) for name in HOSTILE]


def test_the_nodes_above_are_known_from_the_top() -> None:
    assert Paths("/apps/locks", "a/b").above == ["/apps", "/apps/locks"]
    assert Paths("/apps/locks", "a/b").space == "/apps/locks/a%2Fb"


@pytest.mark.parametrize("first", [0, 7, 2**31 - 3, -(2**31), -2])
def test_the_order_is_that_of_the_server_also_where_its_numbers_wrap(first: int) -> None:
    numbers = [(first + step + 2**31) % 2**32 - 2**31 for step in range(5)]
    names = [f"{guid(str(number))}-{number:010d}" for number in numbers]
    for turn in range(5):
        assert queue_order(names[turn:] + names[:turn]) == names


def test_nodes_of_others_are_not_in_the_queue() -> None:
    assert queue_order(["lock-0000000001", f"{'x' * 32}-", f"{'x' * 32}-one", "7"]) == []


@pytest.mark.parametrize("share", [None, SHARED, Share(1, 3), Share(MOST_SLOTS, MOST_SLOTS)])
def test_a_guid_tells_the_share_and_nothing_else_of_its_token(share: Share | None) -> None:
    one, other = (guid(secret if share is None else share.token(secret)) for secret in ("token", "Token"))
    assert share_of(one) == share_of(f"{one}-0000000007") == share
    assert len(one) == 32
    assert one != other
    assert "token" not in one


def test_to_an_older_dibs_the_node_of_a_share_is_one_in_the_queue_like_any_other() -> None:
    """It read the number after the first 32 characters and a dash, and granted the lock to the lowest."""
    node = f"{guid(SHARED.token('token'))}-0000000007"
    assert (node[32], int(node[33:])) == ("-", 7)
