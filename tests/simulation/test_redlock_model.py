"""Fences of Redlock are unique and rise, in every order of events of small games; wrong rules are found out.

What was left out of the usual run, so that it takes seconds: one node, not each, may carry out a request twice, and
these games do not lose single answers out of a row. ``DIBS_MODEL=large`` plays the larger games too, for minutes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from redlock_model import HELD, NO, RedlockAttempt, Rules, Search, Setup

from dibs.stores.redlock import vote

SOUND = {
    "answers are lost": Setup(lossy=True),
    "attempts propose fences": Setup(proposals=(0, 2, 4)),
    "a node carries a request out twice": Setup(twice=1),
    "a node forgets, waits and is synchronised": Setup(losses=1),
}
LARGE = {
    "proposals, and lost answers": Setup(proposals=(0, 2, 4), lossy=True),
    "every node carries a request out twice": Setup(twice=3),
    "a node forgets while fences are proposed": Setup(losses=1, proposals=(0, 2)),
    "four nodes": Setup(nodes=4),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("setup", SOUND.values(), ids=SOUND.keys())
def test_no_order_of_events_breaks_a_fence(setup: Setup) -> None:
    result = Search(setup, Rules()).run()
    assert not result.violation, result.trace
    assert result.states > 50_000


@pytest.mark.skipif("DIBS_MODEL" not in os.environ, reason="minutes: DIBS_MODEL=large")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setup", LARGE.values(), ids=LARGE.keys())
def test_no_order_of_events_breaks_a_fence_in_larger_games(setup: Setup) -> None:
    result = Search(setup, Rules()).run()
    assert not result.violation, result.trace


class HighestOfAQuorum(Rules):
    """The highest fence of a quorum is returned, whoever else may have it."""

    def returned(self, said: Sequence[int], quorum: int) -> int:
        return vote.fence_of(said) if vote.votes(said) >= quorum else 0


class TakesAnyAnswer(Rules):
    """Whoever answers the second round has confirmed, with whatever fence."""

    exact = False

    def hears(self, known: int, answer: int, asked: int) -> int:
        if answer == NO:
            return vote.REFUSED
        return max(known, asked) if asked else vote.heard(known, answer)


class RaisesWithoutHolding(TakesAnyAnswer):
    """A node rises although it does not hold the token."""

    def rises(self, *, ours: bool) -> bool:
        return True


class AsksAnybody(TakesAnyAnswer):
    """Nodes whose grant was not heard count too, as long as they answer the second round."""

    def to_raise(self, said: Sequence[int], quorum: int) -> Sequence[int]:
        asked = [node for node, each in enumerate(said) if vote.UNHEARD <= each < max(said)]
        return asked if vote.votes(said) >= quorum else []


class UsesATokenTwice(Rules):
    """The second attempt, after the first, proves itself with the same token."""

    def token(self, attempt: int) -> int:
        return 1

    def may_begin(self, before: Sequence[RedlockAttempt]) -> bool:
        return all(each.phase == HELD for each in before)


BROKEN = {
    "the highest of a quorum, not confirmed": (Setup(), HighestOfAQuorum()),
    "raised whoever holds it": (Setup(), RaisesWithoutHolding()),
    "confirmed by nodes that were not heard": (Setup(lossy=True), AsksAnybody()),
    "a token is used twice": (Setup(), UsesATokenTwice()),
    "half of the nodes is no quorum": (Setup(nodes=4, quorum=2), Rules()),
    "a node forgets, and nothing is done about it": (Setup(losses=1, delay=False, sync=False), Rules()),
    "a node forgets, waits, and is not synchronised": (Setup(losses=1, sync=False), Rules()),
    "a node forgets, and is synchronised at once": (Setup(losses=1, delay=False), Rules()),
}


@pytest.mark.parametrize(("setup", "rules"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_is_found(setup: Setup, rules: Rules) -> None:
    """The search can fail: each counter-example that is known is found again."""
    assert Search(setup, rules).run().violation
