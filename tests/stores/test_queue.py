"""Whose turn it is in a queue, and what wakes the others: by example, and in lines of every kind that come and go."""

from __future__ import annotations

import random

import pytest

from dibs.share import SHARED, UNBOUNDED, Share
from dibs.stores.queue import WakeUp, call, fits, inside, slots

ONE, TWO, THREE = (Share(weight, 3) for weight in (1, 2, 3))
OTHER = Share(1, 5)


@pytest.mark.parametrize(
    ("queue", "holding"),
    [
        ([], 0),
        ([None], 1),
        ([None, None], 1),
        ([None, SHARED], 1),
        ([SHARED, SHARED, SHARED], 3),
        ([SHARED, None, SHARED], 1),
        ([SHARED, SHARED, OTHER, SHARED], 2),
        ([ONE, ONE, ONE], 3),
        ([ONE, ONE, ONE, ONE], 3),
        ([TWO, ONE, ONE], 2),
        ([TWO, TWO, ONE], 1),
        ([ONE, THREE, ONE], 1),
        ([ONE, OTHER, ONE], 1),
        ([Share(9, 3), ONE], 1),
    ],
)
def test_the_first_is_in_and_no_later_one_passes_a_waiter_that_does_not_fit(
    queue: list[Share | None], holding: int
) -> None:
    assert inside(queue) == holding
    for position in range(len(queue)):
        assert fits(queue[:position], queue[position]) == (position < holding)


def test_the_holders_say_how_many_slots_there_are() -> None:
    assert slots([]) is slots([None, ONE]) is None
    assert (slots([ONE, None, OTHER]), slots([SHARED])) == (3, UNBOUNDED)


@pytest.mark.parametrize(
    ("queue", "calls"),
    [
        ([None, None], WakeUp(0, granted=False)),
        ([SHARED, SHARED, None], WakeUp(1, granted=False)),
        ([SHARED, None, SHARED], WakeUp(1, granted=False)),
        ([SHARED, None, SHARED, SHARED], WakeUp(1, granted=False)),
        ([None, OTHER, SHARED, SHARED], WakeUp(1, granted=True)),
        ([ONE, TWO, TWO], WakeUp(None, granted=False)),
        ([ONE, THREE], WakeUp(None, granted=False)),
        ([ONE, THREE, ONE], WakeUp(1, granted=True)),
        ([None, ONE], WakeUp(0, granted=False)),
        ([None, ONE, ONE], WakeUp(1, granted=True)),
        ([None, OTHER, ONE], WakeUp(1, granted=True)),
        ([ONE, None, ONE], WakeUp(1, granted=False)),
    ],
)
def test_a_waiter_listens_for_what_may_let_it_in(queue: list[Share | None], calls: WakeUp) -> None:
    assert call(queue, len(queue) - 1) == calls


class Member:
    """One in the queue of the model."""

    def __init__(self, share: Share | None) -> None:
        self.share, self.knows, self.listens = share, False, WakeUp(None, granted=False)
        self.to: Member | None = None


class Model:
    """A queue whose members look only when they are called, and are called only by what `queue.call` says."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.queue, self.called, self.looks, self.ever = chance, list[Member](), list[Member](), 0, 0

    def shares(self) -> list[Share | None]:
        return [member.share for member in self.queue]

    def comes(self, share: Share | None) -> None:
        member = Member(share)
        self.queue.append(member)
        self._look(member)

    def goes(self, member: Member) -> None:
        position = self.queue.index(member)
        self.queue.remove(member)
        for other in self.queue[position:]:
            if not other.knows and (other.to is member or (other.to is None and other.listens.position is None)):
                self._call(other)

    def settle(self) -> None:
        """The called members look, in any order."""
        while self.called:
            self._look(self.called.pop(self.chance.randrange(len(self.called))))

    def _look(self, member: Member) -> None:
        if member not in self.queue or member.knows:
            return
        self.looks += 1
        position, shares = self.queue.index(member), self.shares()
        have = slots(shares)
        if member.share is not None and have not in (None, member.share.slots):
            self.goes(member)
        elif position < inside(shares):
            member.knows = True
            for other in self.queue:
                if other.to is member and other.listens.granted:
                    self._call(other)
        else:
            member.listens = call(shares, position)
            member.to = None if member.listens.position is None else self.queue[member.listens.position]

    def _call(self, member: Member) -> None:
        if member not in self.called:
            self.called.append(member)

    def check(self) -> None:
        """Never are more inside than there is room for, and the first waiter never waits while it has room."""
        turn = inside(self.shares())
        assert not any(member.knows for member in self.queue[turn:]), "one of them is in before its turn"
        held = [member.share for member in self.queue if member.knows]
        assert len(held) <= 1 or (
            held[0] is not None
            and {share and share.slots for share in held} == {held[0].slots}
            and sum(share.weight for share in held if share) <= held[0].slots
        ), f"too many are in: {held}"
        if not self.called:
            assert len(held) == turn, "there is room, and nobody has told the first"
            have, waits = slots(self.shares()), self.queue[turn:]
            assert not waits or waits[0].share is None or have in (None, waits[0].share.slots), "it should be refused"


KINDS: list[list[Share | None]] = [
    [None],
    [None, SHARED, SHARED, SHARED],
    [ONE],
    [ONE, ONE, TWO, THREE],
    [None, ONE, TWO, THREE, SHARED, OTHER, Share(4, 5)],
]


@pytest.mark.parametrize("shares", KINDS, ids=str)
def test_lines_of_every_kind_let_in_whom_there_is_room_for_and_nobody_else(shares: list[Share | None]) -> None:
    chance = random.Random(11)
    for _ in range(80):
        model = Model(chance)
        for _ in range(60):
            if chance.random() < 0.55 or not model.queue:
                model.comes(chance.choice(shares))
            else:
                model.goes(chance.choice(model.queue))
            if chance.random() < 0.7:
                model.settle()
            model.check()
        while model.queue:
            model.settle()
            model.check()
            model.goes(chance.choice([member for member in model.queue if member.knows]))


@pytest.mark.parametrize(("share", "looks"), [(None, 1), (SHARED, 1), (ONE, 2)])
def test_a_crowd_looks_as_often_for_each_grant_however_large_it_is(share: Share | None, looks: int) -> None:
    model, crowd = Model(random.Random(1)), 50
    model.comes(None)
    for _ in range(crowd):
        model.comes(share)
    model.looks = 0
    while model.queue:
        model.goes(next(member for member in model.queue if member.knows))
        model.settle()
    assert model.looks <= looks * crowd + 3
