"""The renewal of any number of claims: a hundred in a call, each decided by a majority of its own. Nothing is sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dibs.errors import LossReason, StoreUnavailable
from dibs.stores.redlock.port.nodes import NodeAnswer, NodeCall
from dibs.stores.store import Claim, PartlyRenewed

TOGETHER = 100
"""Locks in one call of the script: it stays a short step for the node."""


def grouped(claims: Sequence[Claim]) -> list[Sequence[Claim]]:
    """The claims of each call."""
    return [claims[at : at + TOGETHER] for at in range(0, len(claims), TOGETHER)]


def is_decided(said: Collection[object], count: int, quorum: int) -> bool:
    """Whether a majority of *count* nodes said that it is held, or that it is not held, so that no majority is left."""
    heard = list(said)
    held = heard.count(b"held")
    return held >= quorum or len(heard) - held > count - quorum


class Renewal:
    """What the nodes have said so far to some calls."""

    def __init__(self, calls: Sequence[NodeCall], count: int, quorum: int) -> None:
        self._count, self._quorum = count, quorum
        self._place = {id(call): place for place, call in enumerate(calls)}
        self.replies: list[dict[int, Any]] = [{} for _ in calls]

    def hear(self, answer: NodeAnswer) -> None:
        """One node has answered one call; what is no list is an error."""
        self.replies[self._place[id(answer.call)]][answer.node] = answer.reply

    @property
    def is_decided(self) -> bool:
        """Whether no answer that is still to come can change anything."""
        return all(self._is_decided(replies) for replies in self.replies)

    def answer(self, place: int, index: int) -> LossReason | bool | None:
        """What became of one claim: None if it is renewed, the reason if it is lost; False if that is not known."""
        said = [reply[index] for reply in self.replies[place].values() if isinstance(reply, list)]
        held = said.count(b"held")
        if held >= self._quorum:
            return None
        if len(said) - held > self._count - self._quorum:
            return LossReason.EVICTED if b"evicted" in said else LossReason.TAKEN
        return False

    def _is_decided(self, replies: dict[int, Any]) -> bool:
        if len(replies) == self._count:
            return True
        answered = [reply for reply in replies.values() if isinstance(reply, list)]
        if len(answered) < self._quorum:
            return False
        return all(is_decided(said, self._count, self._quorum) for said in zip(*answered, strict=True))


def settled(shown: str, answers: list[Any]) -> list[LossReason | None]:
    """The answers; an error if there is nothing else, and one that carries the others if there is."""
    errors = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    if not errors:
        return answers
    if len(errors) == len(answers):  # a new one: raising one that our own frames refer to would keep them all alive
        raise type(errors[0])(shown, errors[0].problem, errors[0].causes)
    raise PartlyRenewed(shown, errors[0].problem, answers)
