"""One process that takes and gives back one lock again and again, and cannot always reach all nodes.

``python contender.py URL LOG MODE``: a line "asked granted fence" for each grant, until it is killed. MODE is
``confirmed``, ``counted`` (no proposals, so nodes disagree) or ``highest`` (counted, and the highest fence of a quorum
is taken without being confirmed: what has to be found).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import dibs
from dibs.errors import DibsError, StoreUnavailable
from dibs.runtime.clock import boot_time
from dibs.stores.redlock import vote
from dibs.stores.redlock.port.nodes import NodeAnswer, NodeCall, PlainCommand
from dibs.stores.redlock.port.nodes_blocking import BlockingNodes
from dibs.stores.redlock.port.round_blocking import BlockingRound
from dibs.stores.redlock.store import RedlockStore
from dibs.stores.redlock.vote import Verdict

UNREACHABLE = 0.15
"""The odds that a node cannot be reached in one attempt."""


class Unlucky:
    """A round in which some nodes cannot be reached; the same ones when what was granted in it is given back."""

    cut_by_token: ClassVar[dict[str, set[int]]] = {}

    def __init__(self, real: BlockingRound, names: Sequence[str], token: str) -> None:
        self._real, self._names, self.next = real, names, real.next
        drawn = {node for node in range(len(names)) if random.random() < UNREACHABLE}
        self._cut = self.cut_by_token.pop(token, drawn)

    def end(self, *, keep: str = "") -> None:
        if keep:
            self.cut_by_token[keep] = self._cut
        self._real.end(keep=keep)

    def send(
        self, node: int, call: NodeCall | PlainCommand, *, undo: NodeCall | None = None, behind: bool = False
    ) -> None:
        if node in self._cut:
            error = StoreUnavailable(self._names[node], "out of reach")
            self._real.answers.append(NodeAnswer(node, call, error))
        else:
            self._real.send(node, call, undo=undo, behind=behind)

    def send_all(self, call: NodeCall, *, undo: NodeCall | None = None, behind: bool = False) -> None:
        for node in range(len(self._names)):
            self.send(node, call, undo=undo, behind=behind)


def contend(url: str, log: Path, mode: str) -> None:
    client = dibs.connect(url)
    store = cast("RedlockStore", client._core._store)
    nodes = cast("BlockingNodes", store._nodes)
    real = nodes.round
    nodes.round = lambda token="": Unlucky(real(token), nodes.names, token)  # type: ignore[method-assign,assignment,return-value]
    if mode != "confirmed":
        store._granting.proposal = lambda: 0
    if mode == "highest":
        take_the_highest()
    lock = client.lock("x", ttl=0.6, timeout=20)
    with log.open("a", buffering=1, encoding="utf-8") as lines:
        while True:
            asked = boot_time()
            try:
                lease = lock.acquire()
                lines.write(f"{asked} {boot_time()} {lease.fence}\n")
                lease.release()
            except DibsError:
                continue


def take_the_highest() -> None:
    confirmed = vote.verdict

    def verdict(said: Sequence[int], quorum: int) -> Verdict:
        return Verdict.WON if vote.votes(said) >= quorum else confirmed(said, quorum)

    vote.verdict = verdict


if __name__ == "__main__":
    contend(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
