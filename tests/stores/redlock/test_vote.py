"""The arithmetic of a quorum, one truth at a time; that it is the right arithmetic is shown in tests/simulation."""

from __future__ import annotations

from itertools import combinations

import pytest

from dibs.stores.redlock import vote
from dibs.stores.redlock.vote import FAILED, REFUSED, UNHEARD, Verdict


@pytest.mark.parametrize("nodes", range(1, 10))
def test_any_two_quorums_share_a_node_and_a_smaller_number_would_not(nodes: int) -> None:
    quorum = vote.quorum_of(nodes)
    assert 2 * quorum > nodes
    assert 2 * (quorum - 1) <= nodes


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_one_fence_wins_exactly_when_a_quorum_answers_with_it(nodes: int) -> None:
    quorum = vote.quorum_of(nodes)
    for count in range(nodes + 1):
        for free in combinations(range(nodes), count):
            said = [7 if node in free else REFUSED for node in range(nodes)]
            assert vote.verdict(said, quorum) is (Verdict.WON if count >= quorum else Verdict.LOST)


def test_it_is_open_as_long_as_a_quorum_may_still_say_yes() -> None:
    assert vote.verdict([7, REFUSED, UNHEARD], 2) is Verdict.OPEN
    assert vote.verdict([7, REFUSED, FAILED], 2) is Verdict.LOST
    assert vote.verdict([UNHEARD, UNHEARD, FAILED], 2) is Verdict.OPEN


def test_a_quorum_that_disagrees_has_not_won() -> None:
    assert vote.verdict([7, 8, UNHEARD], 2) is Verdict.OPEN
    assert vote.verdict([7, 7, 8], 2) is Verdict.OPEN, "the third may have given 7 to another before"


def test_only_nodes_with_a_lower_fence_are_asked_to_rise() -> None:
    assert vote.to_raise([7, 9, 8, REFUSED, UNHEARD], 3) == [0, 2]


def test_nobody_is_asked_to_rise_before_a_quorum_holds_the_token() -> None:
    assert vote.to_raise([7, 9, REFUSED, UNHEARD, FAILED], 3) == []


def test_a_higher_answer_begins_the_count_anew() -> None:
    said = [8, 8, 7]
    said[2] = vote.heard(said[2], 9)
    assert (vote.fence_of(said), vote.verdict(said, 2), vote.to_raise(said, 2)) == (9, Verdict.OPEN, [0, 1])


def test_an_answer_that_comes_out_of_order_takes_nothing_back() -> None:
    assert vote.heard(vote.heard(UNHEARD, 9), 7) == 9


def test_the_vote_may_be_free_when_the_earliest_of_the_others_end() -> None:
    assert vote.free_after([9.0, 2.0, 5.0], missing=2) == 5.0
    assert vote.free_after([], missing=1) == 0.0
    assert vote.free_after([3.0], missing=0) == 0.0
