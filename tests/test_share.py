"""Parts of a name, and the tokens that stand for them."""

from __future__ import annotations

import pytest

from dibs.errors import Misuse
from dibs.share import SHARED, UNBOUNDED, Share, other_slots, share_of, shown_share


@pytest.mark.parametrize("share", [SHARED, Share(1, 1), Share(2, 10), Share(1_000_000, 1_000_000)])
def test_a_token_says_which_part_it_stands_for(share: Share) -> None:
    assert share_of(share.token("0123abcd")) == share
    assert share.token("0123abcd").endswith("-0123abcd")


@pytest.mark.parametrize(
    "token", ["0123abcd", "", "part", "part-", "part-x", "part-1of-z", "part-of3-z", "part-1-of-3"]
)
def test_other_tokens_stand_for_the_whole_name(token: str) -> None:
    assert share_of(token) is None
    assert shown_share(token) == ""


def test_people_read_it_in_words() -> None:
    assert (SHARED.shown, Share(2, 10).shown) == ("shared", "2 of 10 slots")
    assert shown_share(Share(1, 3).token("x")) == "1 of 3 slots"


def test_a_refusal_says_what_was_asked_for_and_what_is_there() -> None:
    refused = other_slots("encoder", Share(1, 3), UNBOUNDED)
    assert isinstance(refused, Misuse)
    assert "a semaphore of 3 slots, and is held as a shared lock" in str(refused)
