"""Every order of events in a small Redlock: attempts, nodes, messages of any age, keys that end at any moment.

The rules of the game are `dibs.stores.redlock.vote`, the code that the store runs; the model adds what surrounds it.
Requests are carried out late, never, or twice; answers come late or never; a key may end at any moment; a node may
lose its memory and come back. Every state that can be reached is visited once (nodes are interchangeable). A wrong
rule is put in by subclassing `Rules`: then a violation has to be found.

To be fast enough, a node with all that is on its way to and from it is one number, and what can happen at it is
worked out once for each such number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from dibs.stores.redlock import vote
from dibs.stores.redlock.vote import Verdict

T = TypeVar("T")

NO = -1
"""The answer of a node that does not hold the token."""

IDLE, OPEN, HELD, OVER = range(4)
"""An attempt has not begun, is under way, has returned a fence, or was given up."""


class Rules:
    """How attempts and nodes behave: the real protocol."""

    exact = True
    """Whether only the fence in an answer counts, and not what was asked for."""

    def hears(self, known: int, answer: int, asked: int) -> int:
        """What is known of a node after its answer; *asked*: the fence it was asked to rise to, 0 for a grant."""
        return vote.heard(known, answer) if answer != NO else vote.UNHEARD  # as good as REFUSED, for fewer states

    def returned(self, said: Sequence[int], quorum: int) -> int:
        """The fence that is returned; 0 as long as there is none."""
        return vote.fence_of(said) if vote.verdict(said, quorum) is Verdict.WON else 0

    def to_raise(self, said: Sequence[int], quorum: int) -> Sequence[int]:
        """The nodes to be asked to rise."""
        return vote.to_raise(said, quorum)

    def rises(self, *, ours: bool) -> bool:
        """Whether a node that is asked to rise does so; *ours*: it holds the token."""
        return ours

    def token(self, attempt: int) -> int:
        """What the attempt proves itself with; 0 is nobody."""
        return attempt + 1

    def may_begin(self, before: Sequence[RedlockAttempt]) -> bool:
        """Whether the next attempt may begin."""
        return True


class Setup(NamedTuple):
    """How big the game is, and what goes wrong in it."""

    nodes: int = 3
    attempts: int = 2
    quorum: int = 0
    """0: more than half."""
    proposals: tuple[int, ...] = (0,)
    twice: int = 0
    """So many nodes may carry out the request of the first attempt a second time."""
    lossy: bool = False
    """Whether an answer can be lost and a later one of the same node heard."""
    losses: int = 0
    """How often a node loses its memory."""
    delay: bool = True
    """Whether it then keeps out until every attempt that may have heard from it has ended."""
    sync: bool = True
    """Whether it then takes over the highest fence of a quorum of the others."""


class Side(NamedTuple):
    """One attempt, as far as one node is concerned, and what is on the way between them."""

    done: int = 0
    """How often its request was carried out here."""
    asked: tuple[int, ...] = ()
    """The fences it was asked to rise to, not carried out yet."""
    answers: tuple[tuple[int, int], ...] = ()
    """On their way back: the answer, and the fence asked for."""
    top: int = 0
    """The highest fence it was ever asked to rise to."""
    said: int = 0
    """What the attempt knows of the node."""


class Node(NamedTuple):
    """One node."""

    sides: tuple[Side, ...]
    twice: bool = False
    """Whether it may carry out the first attempt's request again."""
    holder: int = 0
    fence: int = 0
    down: bool = False
    waits: tuple[int, ...] = ()
    """The attempts that have to end before it comes back."""


class RedlockAttempt(NamedTuple):
    """One attempt."""

    phase: int = IDLE
    floor: int = 0
    """The highest fence that had been returned when it began; of no interest once it has returned a higher one."""
    proposal: int = 0
    fence: int = 0
    """What it returned."""


class Result(NamedTuple):
    """What a search found."""

    violation: str
    """Empty if there is none."""
    states: int
    trace: str


State = tuple[tuple[int, ...], tuple[RedlockAttempt, ...], int]
"""The nodes by number, sorted; the attempts; the losses that are still to come."""


class Search:
    """One exhaustive search."""

    def __init__(self, setup: Setup, rules: Rules) -> None:
        self.setup, self.rules = setup, rules
        self.quorum = setup.quorum or vote.quorum_of(setup.nodes)
        self._number: dict[Node, int] = {}
        self._nodes: list[Node] = []
        self._moves: dict[object, list[int]] = {}
        self._changed: dict[tuple[int, int, Side], int] = {}

    def run(self) -> Result:
        """Visit every state, nearest first, so that a violation comes with a short trace."""
        setup = self.setup
        sides = (Side(),) * setup.attempts
        nodes = sorted(self._numbered(Node(sides, place < setup.twice)) for place in range(setup.nodes))
        first: State = (tuple(nodes), (RedlockAttempt(),) * setup.attempts, setup.losses)
        before: dict[State, State | None] = {first: None}
        layer = [first]
        while layer:
            following: list[State] = []
            for state in layer:
                for after in self._after(state):
                    if after in before:
                        continue
                    before[after] = state
                    following.append(after)
                    if after[1] is not state[1] and (wrong := violation(after[1])):
                        return Result(wrong, len(before), self._trace(after, before))
            layer = following
        return Result("", len(before), "")

    # --- what can happen -----------------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[State]:
        numbers, attempts, losses = state
        yield from self._begins(state)
        phases = tuple(each.phase for each in attempts)
        proposals = tuple(each.proposal for each in attempts)
        last = -1
        for place, number in enumerate(numbers):
            if number == last:
                continue  # a node like the one before
            last = number
            for other in self._at_node(number, phases, proposals):
                yield _sorted(numbers, place, other), attempts, losses
            for attempt, side in enumerate(self._nodes[number].sides):
                if side.answers and phases[attempt] == OPEN:
                    yield self._heard(state, place, attempt)
        if self.setup.losses:
            yield from self._forgets(state)
            waited_for = {attempt for number in numbers for attempt in self._nodes[number].waits}
            for attempt in waited_for:  # who gives up unnoticed is as one who stands still for ever
                if phases[attempt] == OPEN:
                    over = RedlockAttempt(OVER, 0, proposals[attempt])
                    yield *self._ended(numbers, attempts, attempt, over), losses

    def _begins(self, state: State) -> Iterator[State]:
        numbers, attempts, losses = state
        begun = [each for each in attempts if each.phase != IDLE]
        if len(begun) < len(attempts) and self.rules.may_begin(begun):
            floor = max(each.fence for each in attempts)
            for proposal in self.setup.proposals:
                yield numbers, _with(attempts, len(begun), RedlockAttempt(OPEN, floor, proposal)), losses

    def _at_node(self, number: int, phases: tuple[int, ...], proposals: tuple[int, ...]) -> list[int]:
        known = self._moves.get((number, phases, proposals))
        if known is None:
            found = self._moves_at(self._nodes[number], phases, proposals)
            known = self._moves[number, phases, proposals] = [self._numbered(node) for node in found]
        return known

    def _moves_at(self, node: Node, phases: tuple[int, ...], proposals: tuple[int, ...]) -> Iterator[Node]:
        if node.down:
            return
        if node.holder:
            yield node._replace(holder=0)  # its ttl ends, or it is given back
        for attempt, side in enumerate(node.sides):
            if phases[attempt] == IDLE:
                continue
            if side.done < 1 + (node.twice and attempt == 0):
                yield self._granted(node, attempt, proposals[attempt], heard=phases[attempt] == OPEN)
            if side.answers and self.setup.lossy:  # one is lost, and what was asked for later may still be answered
                yield node._replace(sides=_with(node.sides, attempt, side._replace(answers=side.answers[1:])))
            if side.asked:
                yield self._raised(node, attempt, heard=phases[attempt] == OPEN)

    def _granted(self, node: Node, attempt: int, proposal: int, *, heard: bool) -> Node:
        """The request of an attempt is carried out."""
        token, side = self.rules.token(attempt), node.sides[attempt]
        side = side._replace(done=side.done + 1)
        if node.holder == 0:
            node = node._replace(holder=token, fence=max(node.fence + 1, proposal))
        if node.holder == token and heard:
            side = _answered(side, node.fence, 0)
        return node._replace(sides=_with(node.sides, attempt, side))

    def _raised(self, node: Node, attempt: int, *, heard: bool) -> Node:
        """A request to rise is carried out."""
        side, answer = node.sides[attempt], NO
        wanted, *asked = side.asked
        if self.rules.rises(ours=node.holder == self.rules.token(attempt)):
            answer = max(node.fence, wanted)
            node = node._replace(fence=answer)
        side = side._replace(asked=tuple(asked))
        if heard:
            side = _answered(side, answer, 0 if self.rules.exact else wanted)
        return node._replace(sides=_with(node.sides, attempt, side))

    def _heard(self, state: State, place: int, attempt: int) -> State:
        """The first answer of the node at *place* comes to an attempt, which does what follows from it."""
        numbers, attempts, losses = state
        sides = [self._nodes[number].sides[attempt] for number in numbers]
        (answer, asked), *rest = sides[place].answers
        known = self.rules.hears(sides[place].said, answer, asked)
        done, wants, _, top, _ = sides[place]
        sides[place] = Side(done, wants, tuple(rest), top, known)
        said = [side.said for side in sides]
        fence = self.rules.returned(said, self.quorum)
        if fence:
            _, floor, proposal, _ = attempts[attempt]
            returned = RedlockAttempt(HELD, floor if fence <= floor else 0, proposal, fence)
            return *self._ended(numbers, attempts, attempt, returned), losses
        wanted = max(said)
        for node in self.rules.to_raise(said, self.quorum):
            if sides[node].top < wanted:
                sides[node] = sides[node]._replace(asked=(*sides[node].asked, wanted), top=wanted)
        return self._with_sides(numbers, attempt, sides), attempts, losses

    def _ended(
        self, numbers: tuple[int, ...], attempts: tuple[RedlockAttempt, ...], attempt: int, ended: RedlockAttempt
    ) -> tuple[tuple[int, ...], tuple[RedlockAttempt, ...]]:
        """An attempt has ended: answers are of no interest any more, but what it asked for may still be carried out."""
        sides = [self._nodes[number].sides[attempt] for number in numbers]
        left = [Side(side.done, side.asked) for side in sides]
        return self._with_sides(numbers, attempt, left), _with(attempts, attempt, ended)

    def _forgets(self, state: State) -> Iterator[State]:
        """A node loses its memory, or comes back."""
        numbers, attempts, losses = state
        for place, number in enumerate(numbers):
            node = self._nodes[number]
            if node.down:
                if all(attempts[attempt].phase != OPEN for attempt in node.waits):
                    for fence in self._synced(numbers, place):
                        back = node._replace(down=False, waits=(), fence=fence)
                        yield _sorted(numbers, place, self._numbered(back)), attempts, losses
            elif losses:
                waits = tuple(a for a, each in enumerate(attempts) if each.phase == OPEN and self.setup.delay)
                empty = node._replace(holder=0, fence=0, down=self.setup.delay or self.setup.sync, waits=waits)
                yield _sorted(numbers, place, self._numbered(empty)), attempts, losses - 1

    def _synced(self, numbers: tuple[int, ...], place: int) -> set[int]:
        """The fences that the node at *place* may come back with."""
        if not self.setup.sync:
            return {0}
        others = [self._nodes[number] for at, number in enumerate(numbers) if at != place]
        fences = [node.fence for node in others if not node.down]
        return {max(some) for some in combinations(fences, self.quorum)}

    # --- numbers -------------------------------------------------------------------------------------------

    def _with_sides(self, numbers: tuple[int, ...], attempt: int, sides: Sequence[Side]) -> tuple[int, ...]:
        changed = [self._with_side(number, attempt, side) for number, side in zip(numbers, sides, strict=True)]
        return tuple(sorted(changed))

    def _with_side(self, number: int, attempt: int, side: Side) -> int:
        known = self._changed.get((number, attempt, side))
        if known is None:
            node = self._nodes[number]
            known = self._numbered(node._replace(sides=_with(node.sides, attempt, side)))
            self._changed[number, attempt, side] = known
        return known

    def _numbered(self, node: Node) -> int:
        number = self._number.get(node)
        if number is None:
            number = self._number[node] = len(self._nodes)
            self._nodes.append(node)
        return number

    def _trace(self, last: State, before: dict[State, State | None]) -> str:
        states: list[State] = []
        state: State | None = last
        while state is not None:
            states.append(state)
            state = before[state]
        return "\n".join(self._line(state) for state in reversed(states))

    def _line(self, state: State) -> str:
        numbers, attempts, _ = state
        nodes = " ".join(
            f"[{n.holder or '-'} {n.fence}{' down' * n.down}]" for n in map(self._nodes.__getitem__, numbers)
        )
        return f"{nodes}  {' '.join(f'{each.phase}:{each.fence}' for each in attempts)}"


def violation(attempts: Sequence[RedlockAttempt]) -> str:
    """What is wrong with the fences that were returned."""
    fences = [each.fence for each in attempts if each.phase == HELD]
    if len(set(fences)) < len(fences):
        return "two attempts returned one fence"
    if any(each.phase == HELD and each.fence <= each.floor for each in attempts):
        return "an attempt returned a fence that is not above one returned before it began"
    return ""


def _answered(side: Side, answer: int, asked: int) -> Side:
    """An answer is on its way, unless it says what the one before has said: hearing it twice changes nothing."""
    before = side.answers[-1] if side.answers else (side.said, 0)
    return side if before == (answer, asked) else side._replace(answers=(*side.answers, (answer, asked)))


def _with(all_of: tuple[T, ...], place: int, one: T) -> tuple[T, ...]:
    return (*all_of[:place], one, *all_of[place + 1 :])


def _sorted(numbers: tuple[int, ...], place: int, other: int) -> tuple[int, ...]:
    return tuple(sorted((*numbers[:place], other, *numbers[place + 1 :])))
